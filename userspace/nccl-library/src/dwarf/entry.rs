//! Debugging entries and the references between them.

use gimli::{Attribute, AttributeValue, DwAt, DwTag};

use super::store::Slice;

/// Place of an entry: a unit, and the offset within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DieRef {
    pub(super) unit: usize,
    pub(super) offset: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Entry<'s> {
    pub(super) at: DieRef,
    pub(super) tag: DwTag,
    pub(super) attributes: Vec<Attribute<Slice<'s>>>,
}

impl<'s> Entry<'s> {
    /// Returns the value of an attribute, in the sense of its name.
    pub(super) fn value(&self, name: DwAt) -> Option<AttributeValue<Slice<'s>>> {
        self.attributes.iter().find(|attribute| attribute.name() == name).map(Attribute::value)
    }

    /// Returns an unsigned constant; `None` for a negative one in a signed form.
    pub(super) fn number(&self, name: DwAt) -> Option<u64> {
        self.value(name)?.udata_value()
    }

    pub(super) fn flag(&self, name: DwAt) -> bool {
        matches!(self.value(name), Some(AttributeValue::Flag(true)))
    }
}
