//! Locations of parameters at the entry of their function.

use gimli::constants as dw;
use gimli::{AttributeValue, Expression, Operation};

use super::entry::Entry;
use super::location_list;
use super::reader::{Reader, Unit};
use super::store::Slice;
use crate::elf::{Error, Machine};
use crate::parameter::ParamLocation;

/// Base that a function's `DW_OP_fbreg` offsets count from, as it is at the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameBase {
    /// The stack pointer and that many bytes.
    StackPointer(i64),
    /// A base that is not set up at the entry, or not known.
    Other,
}

/// A location, and whether it is a slot of the function's own frame. Only unoptimised code states such a slot
/// for a parameter, and then the value is not there yet at the entry.
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

    fn in_own_frame() -> Self {
        let why = "it is in the function's frame, which is not set up at the entry";
        Self { own_frame: true, ..Self::unknown(why) }
    }
}

/// Returns the frame base of a concrete function at the address `entry`.
pub(super) fn frame_base(reader: &Reader<'_>, function: &Entry<'_>, entry: u64) -> Result<FrameBase, Error> {
    let unit = reader.unit(function.at.unit)?;
    let machine = reader.store.machine();
    let base =
        at_address(reader, function, dw::DW_AT_frame_base, entry, |expression| {
            match single_operation(unit, expression) {
                Some(Operation::CallFrameCFA) => pushed_by_call(machine).map(FrameBase::StackPointer),
                Some(Operation::RegisterOffset { register, offset, .. })
                    if is_stack_pointer(register, machine) =>
                {
                    Some(FrameBase::StackPointer(offset))
                }
                _ => None,
            }
        })?;
    Ok(match base {
        Stated::At(Some(base)) => base,
        _ => FrameBase::Other,
    })
}

/// Returns the location of a function's parameter at the address `entry`.
pub(super) fn at_entry(
    reader: &Reader<'_>,
    param: &Entry<'_>,
    base: FrameBase,
    entry: u64,
) -> Result<AtEntry, Error> {
    let unit = reader.unit(param.at.unit)?;
    let machine = reader.store.machine();
    let stated = at_address(reader, param, dw::DW_AT_location, entry, |expression| {
        evaluate(unit, expression, base, machine)
    })?;
    Ok(match stated {
        Stated::At(found) => found,
        Stated::Nowhere if param.value(dw::DW_AT_const_value).is_some() => {
            AtEntry::unknown("the compiler made it a constant of this copy")
        }
        Stated::Nowhere => AtEntry::unknown("no location is stated"),
        Stated::Elsewhere => AtEntry::unknown("no location is stated for the entry"),
        Stated::Unreadable => AtEntry::unknown("its location is stated in an unknown form"),
    })
}

/// Answer, for one address, of an attribute that holds an expression or a list of them by address.
enum Stated<T> {
    /// There is no such attribute.
    Nowhere,
    /// The attribute speaks of other addresses only.
    Elsewhere,
    /// The attribute has an unknown form.
    Unreadable,
    At(T),
}

fn at_address<T>(
    reader: &Reader<'_>,
    entry: &Entry<'_>,
    attribute: gimli::DwAt,
    address: u64,
    evaluate: impl FnOnce(Expression<Slice<'_>>) -> T,
) -> Result<Stated<T>, Error> {
    let list = match entry.value(attribute) {
        None => return Ok(Stated::Nowhere),
        Some(AttributeValue::Exprloc(expression)) => return Ok(Stated::At(evaluate(expression))),
        Some(AttributeValue::Block(block)) => return Ok(Stated::At(evaluate(Expression(block)))),
        Some(value) => location_list::offset(reader, entry.at.unit, &value)?,
    };
    let Some(list) = list else { return Ok(Stated::Unreadable) };
    Ok(match location_list::covering(reader, entry.at.unit, list, address, evaluate)? {
        Some(found) => Stated::At(found),
        None => Stated::Elsewhere,
    })
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
        Some(Operation::FrameOffset { offset }) => match base {
            FrameBase::StackPointer(base) => stack_slot(base.checked_add(offset), machine),
            FrameBase::Other => AtEntry::in_own_frame(),
        },
        Some(Operation::RegisterOffset { register, offset, .. }) if is_stack_pointer(register, machine) => {
            stack_slot(Some(offset), machine)
        }
        Some(Operation::EntryValue { .. }) => AtEntry::unknown("its location is stated as an entry value"),
        Some(_) => AtEntry::unknown("it is not in one place"),
        None if refers_to_callers(unit, expression) => {
            AtEntry::unknown("the compiler took it out of this copy's parameters")
        }
        None => AtEntry::unknown("its value has to be computed"),
    }
}

/// Returns the only operation of an expression; `None` when it has several or cannot be read.
fn single_operation<'s>(unit: &Unit<'_>, expression: Expression<Slice<'s>>) -> Option<Operation<Slice<'s>>> {
    let mut operations = expression.operations(unit.encoding());
    let first = operations.next().ok()??;
    matches!(operations.next(), Ok(None)).then_some(first)
}

/// Tells whether the value is only known by what callers state of it: GCC writes so of a parameter that it
/// has removed.
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

/// Returns the bytes that a call pushes. The canonical frame address is the stack pointer before the call. At
/// the entry, an x86-64 call has pushed 8 bytes of return address since; one of 64-bit Arm has pushed
/// nothing.
fn pushed_by_call(machine: Machine) -> Option<i64> {
    match machine {
        Machine::X86_64 => Some(8),
        Machine::Aarch64 => Some(0),
        Machine::Other(_) => None,
    }
}

/// Returns a slot counted from the stack pointer at the entry. Below the caller's part the stack belongs to
/// the function, which has not written it yet.
fn stack_slot(sp_offset: Option<i64>, machine: Machine) -> AtEntry {
    match (sp_offset, pushed_by_call(machine)) {
        (Some(sp_offset), Some(lowest)) if sp_offset >= lowest => {
            AtEntry::at(ParamLocation::EntryStack { sp_offset })
        }
        (Some(_), Some(_)) => AtEntry::in_own_frame(),
        _ => AtEntry::unknown("its place on the stack is not known for this processor"),
    }
}

#[cfg(test)]
mod tests {
    use super::{ParamLocation, stack_slot};
    use crate::elf::Machine;

    #[test]
    fn stack_slots_at_the_entry() {
        let stack = |sp_offset| ParamLocation::EntryStack { sp_offset };
        assert_eq!(stack_slot(Some(8), Machine::X86_64).location, stack(8));
        assert_eq!(stack_slot(Some(16), Machine::X86_64).location, stack(16));
        assert_eq!(stack_slot(Some(0), Machine::Aarch64).location, stack(0));
        for (offset, machine) in [(0, Machine::X86_64), (-16, Machine::X86_64), (-8, Machine::Aarch64)] {
            assert!(stack_slot(Some(offset), machine).own_frame);
        }
        for (offset, machine) in [(None, Machine::X86_64), (Some(0), Machine::Other(21))] {
            let found = stack_slot(offset, machine);
            assert!(!found.location.is_known() && !found.own_frame);
        }
    }
}
