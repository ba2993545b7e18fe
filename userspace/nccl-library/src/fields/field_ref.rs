//! Names of NCCL's structs and of their fields, and the look-up of these in a library's layouts.

use std::fmt;

use super::int::{BitField, IntField};
use crate::layouts::{Field, Layouts};

#[derive(Clone, Copy, Debug)]
pub struct StructRef {
    pub name: &'static str,
    pub asked_by: AskedBy,
    /// Loss without the layout; empty for structs that ncclflow does not always ask for.
    pub lost_without: &'static str,
    /// All fields of the struct that ncclflow uses.
    pub fields: &'static [FieldRef],
}

/// Purpose for which a struct's layout is asked of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedBy {
    /// Tracing: of every library.
    Tracing,
    /// `ncclflow dump` alone.
    Dump,
    /// The same, and the table of shipped layouts has none of it: it is known only of libraries with
    /// debugging information.
    Unshipped,
    Both,
    /// None: the struct comes with those that contain it.
    Nobody,
}

impl StructRef {
    pub fn size(&self, layouts: &Layouts) -> Result<u64, MissingField> {
        layouts.struct_size(self.name).ok_or(self.missing())
    }

    /// Returns the error that says that nothing is known of the struct.
    pub const fn missing(&self) -> MissingField {
        MissingField { strukt: self.name, path: None }
    }
}

/// A field of one of NCCL's structs, under all names that it has had.
#[derive(Clone, Copy, Debug)]
pub struct FieldRef {
    pub strukt: &'static str,
    /// Names of the field, the latest first.
    pub names: &'static [FieldName],
    element: Option<u64>,
}

/// The path of a field from its struct (see [`Layouts::field`]), and the versions that have it there: from
/// one to another but for a gap. Versions are written `2.18` or `2.18.3`; an empty one means no such bound.
#[derive(Clone, Copy, Debug)]
pub struct FieldName {
    pub path: &'static str,
    pub since: &'static str,
    pub until: &'static str,
    /// First and last version that lack it.
    pub except: [&'static str; 2],
}

impl FieldRef {
    pub(super) const fn new(strukt: &'static str, names: &'static [FieldName]) -> Self {
        Self { strukt, names, element: None }
    }

    /// Names one element of a field that is an array.
    #[must_use]
    pub const fn element(self, index: u64) -> Self {
        Self { element: Some(index), ..self }
    }

    /// Finds the field, if this library has it.
    pub fn find(&self, layouts: &Layouts) -> Option<Field> {
        let field = self.names.iter().find_map(|name| layouts.field(self.strukt, name.path))?;
        match self.element {
            Some(index) => field.element(index),
            None => Some(field),
        }
    }

    pub fn exists(&self, layouts: &Layouts) -> bool {
        self.find(layouts).is_some()
    }

    pub fn need(&self, layouts: &Layouts) -> Result<Field, MissingField> {
        self.find(layouts).ok_or(self.missing())
    }

    /// Finds a number or a pointer, if this library has it.
    pub fn find_int(&self, layouts: &Layouts) -> Option<IntField> {
        IntField::of(&self.find(layouts)?)
    }

    pub fn int(&self, layouts: &Layouts) -> Result<IntField, MissingField> {
        self.find_int(layouts).ok_or(self.missing())
    }

    /// Finds a number that may be a bit field, if this library has it. `base`: where the struct begins in the
    /// bytes that it is read from.
    pub fn find_bits(&self, layouts: &Layouts, base: u64) -> Option<BitField> {
        BitField::at(&self.find(layouts)?, base)
    }

    pub fn array(&self, layouts: &Layouts) -> Result<ArrayField, MissingField> {
        let field = self.need(layouts)?;
        let array = field.array.filter(|array| array.elem_size > 0).ok_or(self.missing())?;
        Ok(ArrayField { offset: field.offset, count: array.count, elem_size: array.elem_size })
    }

    /// Returns the error that says that the field is not known; by its latest name.
    pub const fn missing(&self) -> MissingField {
        let path = match self.names {
            [latest, ..] => Some(latest.path),
            [] => None,
        };
        MissingField { strukt: self.strukt, path }
    }
}

/// Place of an array in a struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayField {
    pub offset: u64,
    pub count: u64,
    /// Bytes of an element, not 0.
    pub elem_size: u64,
}

/// A struct, or a field of one, that the known layouts of the library lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingField {
    pub strukt: &'static str,
    /// Path of the field; `None` if nothing of the struct is known.
    pub path: Option<&'static str>,
}

impl fmt::Display for MissingField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no `{}", self.strukt)?;
        if let Some(path) = self.path {
            write!(f, ".{path}")?;
        }
        write!(f, "` in the layouts that are known of this library")
    }
}

impl std::error::Error for MissingField {}

/// Makes a module for each struct: `STRUCT`, and a constant for each field; and `STRUCTS`, a list of all.
///
/// A struct is written `Tracing module = "name", lost "what" { … }`: first who asks for it ([`AskedBy`]).
/// A field is written `NAME = "path" since "2.18" until "2.27";`, with its other names behind commas. A path
/// that was gone for some versions and came back has `except "2.20" to "2.21"`.
macro_rules! fields {
    ($(
        $(#[$about:meta])*
        $asked_by:ident $module:ident = $strukt:literal $(, lost $lost:literal)? {
            $($(#[$doc:meta])* $field:ident = $(
                $path:literal
                $(since $since:literal)? $(until $until:literal)? $(except $gap:literal to $end:literal)?
            ),+;)*
        }
    )*) => {
        /// All structs, in the order in which they are asked for.
        pub(in crate::fields) const STRUCTS: &[$crate::fields::StructRef] = &[$($module::STRUCT),*];
    $(
        $(#[$about])*
        pub mod $module {
            /// The struct itself.
            pub const STRUCT: $crate::fields::StructRef =
                $crate::fields::StructRef {
                    name: $strukt,
                    asked_by: $crate::fields::AskedBy::$asked_by,
                    lost_without: concat!($($lost)?),
                    fields: &[$($field),*],
                };
            $(
                $(#[$doc])*
                pub const $field: $crate::fields::FieldRef = $crate::fields::FieldRef::new($strukt, &[$(
                    $crate::fields::FieldName {
                        path: $path,
                        since: concat!($($since)?),
                        until: concat!($($until)?),
                        except: [concat!($($gap)?), concat!($($end)?)],
                    }
                ),+]);
            )*
        }
    )*};
}
pub(super) use fields;

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro makes public modules")]
mod tests {
    use super::*;
    use crate::layouts::{Member, Struct};

    fields! {
        /// Made up.
        Both comm = "ncclComm", lost "everything" {
            HASH = "id.hash" since "2.33", "commHash" since "2.18.3" until "2.32" except "2.20" to "2.21";
            TREE = "tree";
        }
    }

    fn member(name: &str, offset: u64, size: u64, inner: Option<&str>) -> Member {
        let field = Field { offset, size, type_name: String::new(), array: None, bits: None };
        Member { name: name.into(), field, inner: inner.map(Into::into) }
    }

    /// The drill: NCCL moves a field into another struct and gives it another name.
    #[test]
    fn a_field_is_found_under_each_of_its_names() {
        let mut before = Layouts::default();
        before
            .structs
            .insert("ncclComm".into(), Struct { size: 16, members: vec![member("commHash", 8, 8, None)] });
        let mut after = Layouts::default();
        after.structs.insert("Id".into(), Struct { size: 8, members: vec![member("hash", 0, 8, None)] });
        after
            .structs
            .insert("ncclComm".into(), Struct { size: 24, members: vec![member("id", 16, 8, Some("Id"))] });
        let offset = |layouts| comm::HASH.int(layouts).map(IntField::offset);
        assert_eq!(offset(&before), Ok(8));
        assert_eq!(offset(&after), Ok(16));
        let missing = offset(&Layouts::default()).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "there is no `ncclComm.id.hash` in the layouts that are known of this library"
        );
        assert!(comm::TREE.element(0).find(&after).is_none());
        assert_eq!(STRUCTS.iter().map(|strukt| strukt.lost_without).collect::<Vec<_>>(), ["everything"]);
    }
}
