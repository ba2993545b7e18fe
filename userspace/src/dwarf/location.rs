//! Where a parameter is at the entry of its function.

use gimli::constants as dw;
use gimli::{
    AttributeValue, DebugLoc, DebugLocLists, Expression, LittleEndian, LocationLists, LocationListsOffset,
    Operation,
};

use super::entry::Entry;
use super::limits;
use super::reader::{Reader, Unit};
use super::store::Slice;
use crate::elf::{Error, Machine};
use crate::symbols::ParamLocation;

/// What a function's `DW_OP_fbreg` offsets count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameBase {
    /// The canonical frame address: the stack pointer before the call instruction.
    CallFrame,
    /// Something else, which is not set up at the entry.
    Other,
}

/// A location, and whether it is a slot of the function's own frame: only unoptimised code says so of a parameter, and
/// then the value is not there yet at the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AtEntry {
    pub(super) location: ParamLocation,
    pub(super) own_frame: bool,
}

impl AtEntry {
    fn at(location: ParamLocation) -> Self {
        Self { location, own_frame: false }
    }

    fn unknown(why: impl Into<String>) -> Self {
        Self::at(ParamLocation::Unknown(why.into()))
    }
}

/// The first window of a location list; the entry that covers the function's first address is nearly always its first.
const WINDOW: u64 = 1 << 10;
const WIDE_WINDOW: u64 = 256 << 10;

/// The frame base that a concrete function states.
pub(super) fn frame_base(unit: &Unit<'_>, function: &Entry<'_>) -> FrameBase {
    let expression = match function.value(dw::DW_AT_frame_base) {
        Some(AttributeValue::Exprloc(expression)) => expression,
        Some(AttributeValue::Block(block)) => Expression(block),
        _ => return FrameBase::Other,
    };
    match single_operation(unit, expression) {
        Some(Operation::CallFrameCFA) => FrameBase::CallFrame,
        _ => FrameBase::Other,
    }
}

/// Where a parameter of a function is at the address `entry`.
pub(super) fn at_entry(
    reader: &Reader<'_>,
    param: &Entry<'_>,
    base: FrameBase,
    entry: u64,
) -> Result<AtEntry, Error> {
    let unit = reader.unit(param.at.unit)?;
    let machine = reader.store.machine();
    match param.value(dw::DW_AT_location) {
        None if param.value(dw::DW_AT_const_value).is_some() => {
            Ok(AtEntry::unknown("the compiler made it a constant of this copy"))
        }
        None => Ok(AtEntry::unknown("no location is stated")),
        Some(AttributeValue::Exprloc(expression)) => Ok(evaluate(unit, expression, base, machine)),
        Some(AttributeValue::Block(block)) => Ok(evaluate(unit, Expression(block), base, machine)),
        Some(AttributeValue::LocationListsRef(offset)) => from_list(reader, unit, offset, base, entry),
        Some(AttributeValue::SecOffset(offset)) => {
            from_list(reader, unit, LocationListsOffset(offset), base, entry)
        }
        Some(AttributeValue::DebugLocListsIndex(index)) => {
            let size = u64::from(unit.encoding().format.word_size());
            let start = u64::try_from(unit.loclists_base.0).unwrap_or(u64::MAX);
            let at = u64::try_from(index.0).ok().and_then(|index| index.checked_mul(size));
            let at = at.and_then(|at| at.checked_add(start));
            let at =
                at.ok_or_else(|| reader.store.malformed(".debug_loclists", "an index is out of range"))?;
            let word = reader.store.window(".debug_loclists", at, size)?;
            let offset = word.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
            let offset = start.checked_add(offset).and_then(|offset| usize::try_from(offset).ok());
            match offset {
                Some(offset) if word.len() as u64 == size => {
                    from_list(reader, unit, LocationListsOffset(offset), base, entry)
                }
                _ => Err(reader.store.malformed(".debug_loclists", "an offset is out of range")),
            }
        }
        Some(_) => Ok(AtEntry::unknown("its location is stated in an unknown form")),
    }
}

fn from_list(
    reader: &Reader<'_>,
    unit: &Unit<'_>,
    offset: LocationListsOffset,
    base: FrameBase,
    entry: u64,
) -> Result<AtEntry, Error> {
    let section = if unit.encoding().version >= 5 { ".debug_loclists" } else { ".debug_loc" };
    let start = u64::try_from(offset.0).unwrap_or(u64::MAX);
    let mut last = None;
    for size in [WINDOW, WIDE_WINDOW] {
        let window = reader.store.window(section, start, size)?;
        let lists = LocationLists::new(
            DebugLoc::new(&window, LittleEndian),
            DebugLocLists::new(&window, LittleEndian),
        );
        let mut entries = lists
            .locations(
                LocationListsOffset(0),
                unit.encoding(),
                unit.low_pc,
                &reader.dwarf.debug_addr,
                unit.addr_base,
            )
            .map_err(|error| reader.fault_at(section, error))?;
        for visited in 1..=limits::LOCATIONS {
            match entries.next() {
                Ok(Some(found)) if found.range.begin <= entry && entry < found.range.end => {
                    reader.store.count_entries(visited)?;
                    return Ok(evaluate(unit, found.data, base, reader.store.machine()));
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    reader.store.count_entries(visited)?;
                    return Ok(AtEntry::unknown("no location is stated for the entry"));
                }
                // The list may go on past the window.
                Err(error) => {
                    last = Some(error);
                    break;
                }
            }
        }
        reader.store.count_entries(limits::LOCATIONS / 8)?;
    }
    match last {
        Some(error) => Err(reader.fault_at(section, error)),
        None => Ok(AtEntry::unknown("its location list is too long")),
    }
}

fn evaluate(
    unit: &Unit<'_>,
    expression: Expression<Slice<'_>>,
    base: FrameBase,
    machine: Machine,
) -> AtEntry {
    if expression.0.is_empty() {
        return AtEntry::unknown("it has been optimised away");
    }
    match single_operation(unit, expression) {
        Some(Operation::Register { register }) => AtEntry::at(ParamLocation::Register(register.0)),
        Some(Operation::FrameOffset { offset }) if base == FrameBase::CallFrame => {
            frame_slot(offset, machine)
        }
        Some(Operation::FrameOffset { .. }) => AtEntry {
            own_frame: true,
            ..AtEntry::unknown("it is in the function's frame, which is not set up at the entry")
        },
        Some(Operation::RegisterOffset { register, offset, .. }) if is_stack_pointer(register, machine) => {
            match entry_slot(offset, machine) {
                Some(location) => AtEntry::at(location),
                None => AtEntry::unknown("it is below the stack pointer at the entry"),
            }
        }
        Some(Operation::EntryValue { .. }) => AtEntry::unknown("its location is stated as an entry value"),
        Some(_) => AtEntry::unknown("it is not in one place"),
        None if refers_to_callers(unit, expression) => {
            AtEntry::unknown("the compiler took it out of this copy's parameters")
        }
        None => AtEntry::unknown("its value has to be computed"),
    }
}

/// The one operation of an expression; `None` when it has several or cannot be read.
fn single_operation<'s>(unit: &Unit<'s>, expression: Expression<Slice<'s>>) -> Option<Operation<Slice<'s>>> {
    let mut operations = expression.operations(unit.encoding());
    let first = operations.next().ok()??;
    matches!(operations.next(), Ok(None)).then_some(first)
}

/// Whether the value is only known by what callers state of it: GCC writes so of a parameter that it has removed.
fn refers_to_callers(unit: &Unit<'_>, expression: Expression<Slice<'_>>) -> bool {
    let mut operations = expression.operations(unit.encoding());
    matches!(operations.next(), Ok(Some(Operation::ParameterRef { .. })))
}

fn is_stack_pointer(register: gimli::Register, machine: Machine) -> bool {
    match machine {
        Machine::X86_64 => register == gimli::X86_64::RSP,
        Machine::Aarch64 => register == gimli::AArch64::SP,
        Machine::Other(_) => false,
    }
}

/// A slot counted from the canonical frame address, which is where the stack pointer was before the call: on x86-64 the
/// call has pushed 8 bytes of return address since, on 64-bit Arm nothing.
fn frame_slot(offset: i64, machine: Machine) -> AtEntry {
    let pushed = match machine {
        Machine::X86_64 => 8,
        Machine::Aarch64 => 0,
        Machine::Other(_) => {
            return AtEntry::unknown("the calling convention of this processor is not known");
        }
    };
    match offset.checked_add(pushed) {
        Some(sp_offset) if offset >= 0 => AtEntry::at(ParamLocation::EntryStack { sp_offset }),
        _ => AtEntry {
            own_frame: true,
            ..AtEntry::unknown("it is in the function's frame, which is not set up at the entry")
        },
    }
}

fn entry_slot(sp_offset: i64, machine: Machine) -> Option<ParamLocation> {
    let lowest = if machine == Machine::X86_64 { 8 } else { 0 };
    (sp_offset >= lowest).then_some(ParamLocation::EntryStack { sp_offset })
}

#[cfg(test)]
mod tests {
    use super::{ParamLocation, entry_slot, frame_slot};
    use crate::elf::Machine;

    #[test]
    fn stack_slots_at_the_entry() {
        let stack = |sp_offset| ParamLocation::EntryStack { sp_offset };
        assert_eq!(frame_slot(0, Machine::X86_64).location, stack(8));
        assert_eq!(frame_slot(8, Machine::X86_64).location, stack(16));
        assert_eq!(frame_slot(8, Machine::Aarch64).location, stack(8));
        assert!(frame_slot(-24, Machine::X86_64).own_frame);
        for (offset, machine) in
            [(-24, Machine::X86_64), (i64::MAX, Machine::X86_64), (0, Machine::Other(21))]
        {
            assert!(!frame_slot(offset, machine).location.is_known());
        }
        assert_eq!(entry_slot(8, Machine::X86_64), Some(stack(8)));
        assert_eq!(entry_slot(0, Machine::X86_64), None);
    }
}
