//! Location lists: expressions by the addresses that they hold at.

use gimli::{
    AttributeValue, DebugLoc, DebugLocLists, Expression, LittleEndian, LocationLists, LocationListsOffset,
};

use super::limits;
use super::reader::{Reader, Unit};
use super::store::Slice;
use crate::elf::Error;

/// Bytes of the first part of a list that is read. The entry that covers a function's first address is nearly
/// always its first, and the section is too large to be read whole for some dozen lists.
const WINDOW: u64 = 1 << 10;
const WIDE_WINDOW: u64 = 256 << 10;

/// Returns where the list begins that an attribute leads to; `None` if the attribute is no list.
pub(super) fn offset(
    reader: &Reader<'_>,
    unit: &Unit<'_>,
    value: &AttributeValue<Slice<'_>>,
) -> Result<Option<u64>, Error> {
    let section = ".debug_loclists";
    let out_of_range = || reader.store.malformed(section, "an index is out of range");
    let index = match value {
        AttributeValue::LocationListsRef(offset) => return Ok(u64::try_from(offset.0).ok()),
        AttributeValue::SecOffset(offset) => return Ok(u64::try_from(*offset).ok()),
        AttributeValue::DebugLocListsIndex(index) => u64::try_from(index.0).map_err(|_| out_of_range())?,
        _ => return Ok(None),
    };
    // DWARF 5 numbers the lists of a unit: a table at the unit's base holds their offsets from there.
    let base = u64::try_from(unit.loclists_base.0).map_err(|_| out_of_range())?;
    let size = u64::from(unit.encoding().format.word_size());
    let at = index.checked_mul(size).and_then(|at| at.checked_add(base)).ok_or_else(out_of_range)?;
    let word = reader.store.window(section, at, size)?;
    if word.len() as u64 != size {
        return Err(out_of_range());
    }
    let offset = word.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    base.checked_add(offset).map(Some).ok_or_else(out_of_range)
}

/// Evaluates the expression that a list has for an address; `None` when it has none for that one.
pub(super) fn covering<T>(
    reader: &Reader<'_>,
    unit: &Unit<'_>,
    offset: u64,
    address: u64,
    evaluate: impl FnOnce(Expression<Slice<'_>>) -> T,
) -> Result<Option<T>, Error> {
    let section = if unit.encoding().version >= 5 { ".debug_loclists" } else { ".debug_loc" };
    let fault = |error| reader.fault_at(section, error);
    let mut evaluate = Some(evaluate);
    let mut last = None;
    for size in [WINDOW, WIDE_WINDOW] {
        let window = reader.store.window(section, offset, size)?;
        let lists = LocationLists::new(
            DebugLoc::new(&window, LittleEndian),
            DebugLocLists::new(&window, LittleEndian),
        );
        let start = LocationListsOffset(0);
        let (addresses, base) = (&reader.dwarf.debug_addr, unit.addr_base);
        let mut entries =
            lists.locations(start, unit.encoding(), unit.low_pc, addresses, base).map_err(fault)?;
        for visited in 1..=limits::LOCATIONS {
            let found = match entries.next() {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(None),
                // The list may go on past the window.
                Err(error) => {
                    last = Some(error);
                    break;
                }
            };
            reader.store.count_entries(1)?;
            if found.range.begin <= address && address < found.range.end {
                return Ok(evaluate.take().map(|evaluate| evaluate(found.data)));
            }
            if visited == limits::LOCATIONS {
                return Err(reader.store.malformed(section, "a location list is too long"));
            }
        }
    }
    Err(last.map_or_else(|| reader.store.malformed(section, "a location list is too long"), fault))
}
