//! The handles that NCCL keeps of contexts and events.
//!
//! NCCL never looks into handles. It hands them back, and passes them on as parents, even to another
//! process when a proxy thread there does the work. So they are numbers: a number cannot dangle, and is
//! valid in another process.

use std::ffi::c_void;
use std::num::NonZeroU64;
use std::ptr;

/// A context has 2⁴⁰ objects; the rest of the 63 bits numbers the contexts.
const OBJECT_BITS: u32 = 40;

/// A context, or an object of a context. Zero is NCCL's "no event".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Handle(NonZeroU64);

impl Handle {
    /// The context itself. `context` counts from 1.
    pub(crate) fn of_context(context: u64) -> Option<Self> {
        NonZeroU64::new(context << OBJECT_BITS).map(Self)
    }

    /// The `object`th object of this handle's context.
    pub(crate) fn object(self, object: u64) -> Self {
        let context = self.0.get() >> OBJECT_BITS << OBJECT_BITS;
        Self(self.0 | (context | object & ((1 << OBJECT_BITS) - 1)))
    }

    pub(crate) fn context(self) -> u64 {
        self.0.get() >> OBJECT_BITS
    }

    pub(crate) fn number(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn from_raw(raw: *mut c_void) -> Option<Self> {
        NonZeroU64::new(raw.addr() as u64).map(Self)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "handles are made of 63 bits, NCCL runs on 64-bit machines"
    )]
    pub(crate) fn to_raw(self) -> *mut c_void {
        ptr::without_provenance_mut(self.0.get() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_and_object_come_back_through_a_pointer() {
        let context = Handle::of_context(3).unwrap();
        let object = context.object(77);
        let back = Handle::from_raw(object.to_raw()).unwrap();
        assert_eq!(back, object);
        assert_eq!(back.context(), 3);
        assert_ne!(context.object(77), context.object(78));
        assert_eq!(Handle::from_raw(ptr::null_mut()), None);
    }
}
