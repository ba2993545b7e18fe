//! Compilation units by address.

use std::collections::{BTreeMap, BTreeSet};

use gimli::constants as dw;
use gimli::{AttributeValue, DebugAranges, LittleEndian};

use super::reader::Reader;
use super::store::within_limits;
use crate::elf::Error;

/// Finds the units that hold the wanted addresses. An address that no unit claims is left out.
pub(super) fn units_of(
    reader: &Reader<'_>,
    addresses: &BTreeSet<u64>,
) -> Result<BTreeMap<u64, usize>, Error> {
    let mut units = BTreeMap::new();
    // A damaged index costs only time: addresses that it lacks are looked for in the units themselves.
    _ = within_limits(by_index(reader, addresses, &mut units))?;
    if units.len() < addresses.len() {
        by_unit_ranges(reader, addresses, &mut units)?;
    }
    Ok(units)
}

/// Looks the addresses up in `.debug_aranges`, which GCC writes.
fn by_index(
    reader: &Reader<'_>,
    addresses: &BTreeSet<u64>,
    units: &mut BTreeMap<u64, usize>,
) -> Result<(), Error> {
    let section = reader.store.whole_section(".debug_aranges")?;
    let fault = |error: gimli::Error| reader.store.malformed(".debug_aranges", error.to_string());
    let mut headers = DebugAranges::new(&section, LittleEndian).headers();
    while let Some(header) = headers.next().map_err(fault)? {
        reader.store.count_entries(1)?;
        let start = u64::try_from(header.debug_info_offset().0).unwrap_or(u64::MAX);
        let Some((unit, 0)) = reader.store.unit_at(start) else { continue };
        let mut entries = header.entries();
        let mut visited = 0;
        while let Some(entry) = entries.next().map_err(fault)? {
            visited += 1;
            claim(unit, entry.range(), addresses, units);
        }
        reader.store.count_entries(visited)?;
    }
    Ok(())
}

/// Notes the unit of the addresses in a range, unless another one has claimed them.
fn claim(unit: usize, range: gimli::Range, addresses: &BTreeSet<u64>, units: &mut BTreeMap<u64, usize>) {
    if range.begin < range.end {
        for address in addresses.range(range.begin..range.end) {
            units.entry(*address).or_insert(unit);
        }
    }
}

/// Looks the addresses up in the ranges that the units themselves state: clang writes no index.
fn by_unit_ranges(
    reader: &Reader<'_>,
    addresses: &BTreeSet<u64>,
    units: &mut BTreeMap<u64, usize>,
) -> Result<(), Error> {
    for unit in 0..reader.store.unit_count() {
        if units.len() == addresses.len() {
            break;
        }
        for range in within_limits(ranges_of(reader, unit))?.unwrap_or_default() {
            claim(unit, range, addresses, units);
        }
    }
    Ok(())
}

fn ranges_of(reader: &Reader<'_>, unit: usize) -> Result<Vec<gimli::Range>, Error> {
    let root = reader.unit_entry(unit)?;
    if let Some(ranges) = root.value(dw::DW_AT_ranges) {
        return reader.ranges(unit, ranges);
    }
    let parsed = reader.unit(unit)?;
    let begin = reader.address(parsed, root.value(dw::DW_AT_low_pc));
    let end = match root.value(dw::DW_AT_high_pc) {
        Some(AttributeValue::Udata(size)) => begin.and_then(|begin| begin.checked_add(size)),
        high => reader.address(parsed, high),
    };
    Ok(Vec::from_iter(begin.zip(end).map(|(begin, end)| gimli::Range { begin, end })))
}
