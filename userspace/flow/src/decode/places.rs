//! Places of a struct's fields, in the traced library's layout.

use nccl_library::{
    fields::{BitField, FieldRef, IntField, MissingField},
    layouts::Layouts,
};

/// Place of something that `Ref` names. `base`: offset of the struct in the bytes that it is read from.
pub(super) trait Place<Ref>: Sized {
    fn find(named: Ref, layouts: &Layouts, base: u64) -> Result<Self, MissingField>;
}

impl Place<FieldRef> for BitField {
    fn find(named: FieldRef, layouts: &Layouts, base: u64) -> Result<Self, MissingField> {
        named.find_bits(layouts, base).ok_or(named.missing())
    }
}

impl Place<FieldRef> for IntField {
    fn find(named: FieldRef, layouts: &Layouts, base: u64) -> Result<Self, MissingField> {
        let field = named.need(layouts)?;
        let offset = field.offset.checked_add(base);
        offset.and_then(|offset| Self::new(offset, field.size)).ok_or(named.missing())
    }
}

impl<P: Place<FieldRef>> Place<[FieldRef; 2]> for [P; 2] {
    fn find([first, second]: [FieldRef; 2], layouts: &Layouts, base: u64) -> Result<Self, MissingField> {
        Ok([P::find(first, layouts, base)?, P::find(second, layouts, base)?])
    }
}

/// Property of a version, found by a function of the layouts.
impl<F: Fn(&Layouts) -> bool> Place<F> for bool {
    fn find(named: F, layouts: &Layouts, _base: u64) -> Result<Self, MissingField> {
        Ok(named(layouts))
    }
}

/// Place of something that not all versions have.
impl<P: Place<Ref>, Ref> Place<Ref> for Option<P> {
    fn find(named: Ref, layouts: &Layouts, base: u64) -> Result<Self, MissingField> {
        Ok(P::find(named, layouts, base).ok())
    }
}

/// Declares the places of a struct's fields, each with the name by which it is found.
macro_rules! places {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident {
            $($(#[doc = $about_field:literal])* $field:ident: $place:ty = $named:expr;)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
        pub struct $name {
            $($(#[doc = $about_field])* pub $field: $place,)+
        }

        impl $name {
            /// Finds the places in the library's layouts. `base`: offset of the struct in the bytes that it
            /// is read from.
            pub fn find(
                layouts: &nccl_library::layouts::Layouts,
                base: u64,
            ) -> Result<Self, nccl_library::fields::MissingField> {
                Ok(Self { $($field: $crate::decode::places::Place::find($named, layouts, base)?,)+ })
            }
        }
    };
}
