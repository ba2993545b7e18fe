//! Enumerations.

use gimli::AttributeValue;
use gimli::constants as dw;

use super::entry::{DieRef, Entry};
use super::reader::Reader;
use super::types::Types;
use crate::elf::Error;
use crate::layouts::Enumeration;

/// Reads the enumeration at `at`.
pub(super) fn read<'s>(
    reader: &Reader<'s>,
    types: &mut Types<'_, 's>,
    at: DieRef,
) -> Result<Enumeration, Error> {
    let size = types.describe(Some(at))?.size.unwrap_or(0);
    let mut values = Vec::new();
    for entry in reader.children(at, |tag| tag == dw::DW_TAG_enumerator)? {
        if let (Some(name), Some(value)) = (reader.name(&entry), value(&entry)) {
            values.push((name.to_owned(), value));
        }
    }
    Ok(Enumeration { size, values })
}

fn value(entry: &Entry<'_>) -> Option<i64> {
    // `DW_FORM_dataN` does not tell the sign. A compiler that means a negative value writes `DW_FORM_sdata`,
    // so these are taken as unsigned.
    match entry.value(dw::DW_AT_const_value)? {
        AttributeValue::Sdata(value) => Some(value),
        other => i64::try_from(other.udata_value()?).ok(),
    }
}
