//! Locations of parameters at the entry of their function.

use gimli::constants as dw;
use gimli::{Expression, Operation};

use super::entry::Entry;
use super::location_list;
use super::reader::{Reader, Unit};
use super::store::Slice;
use crate::elf::{Error, Machine};
use crate::parameter::{ParamLocation, pushed_by_call};

/// Why a slot of the function's own frame is no location. Only unoptimised code states such a slot for a
/// parameter, and then the value is not there yet at the entry.
const OWN_FRAME: &str = "it is in the function's frame, which is not set up at the entry";

/// Tells whether a parameter's stated location is a slot of the function's own frame.
pub fn is_in_own_frame(location: &ParamLocation) -> bool {
    matches!(location, ParamLocation::Unknown(why) if why == OWN_FRAME)
}

/// Returns the frame base of a concrete function at the address `entry`, which `DW_OP_fbreg` offsets count
/// from, as bytes from the stack pointer. `None` for a base that is not set up at the entry, or not known.
pub(super) fn frame_base(reader: &Reader<'_>, function: &Entry<'_>, entry: u64) -> Option<i64> {
    let machine = reader.store.machine();
    let base = at_address(reader, function, dw::DW_AT_frame_base, entry, |unit, expression| {
        let operation = single_operation(unit, expression)?;
        match operation {
            Operation::CallFrameCFA => pushed_by_call(machine),
            Operation::RegisterOffset { register, offset, .. } if is_stack_pointer(register, machine) => {
                Some(offset)
            }
            _ => None,
        }
    });
    base.ok().flatten()
}

/// Returns the location of a function's parameter at the address `entry`. A location that cannot be read is
/// that parameter's loss only.
pub(super) fn at_entry(
    reader: &Reader<'_>,
    param: &Entry<'_>,
    base: Option<i64>,
    entry: u64,
) -> ParamLocation {
    let machine = reader.store.machine();
    let stated = at_address(reader, param, dw::DW_AT_location, entry, |unit, expression| {
        evaluate(unit, expression, base, machine)
    });
    let has = |attribute| param.value(attribute).is_some();
    if !has(dw::DW_AT_location) && has(dw::DW_AT_const_value) {
        return unknown("the compiler made it a constant of this copy");
    }
    stated.unwrap_or_else(ParamLocation::Unknown)
}

/// Evaluates, for one address, an attribute that holds an expression or a list of them by address.
///
/// # Errors
/// Why it says nothing of that address.
fn at_address<T>(
    reader: &Reader<'_>,
    entry: &Entry<'_>,
    attribute: gimli::DwAt,
    address: u64,
    evaluate: impl FnOnce(&Unit<'_>, Expression<Slice<'_>>) -> T,
) -> Result<T, String> {
    let text = |error: Error| error.to_string();
    let unit = reader.unit(entry.at.unit).map_err(text)?;
    let value = entry.value(attribute).ok_or("no location is stated")?;
    if let Some(expression) = value.exprloc_value() {
        return Ok(evaluate(unit, expression));
    }
    let list = location_list::offset(reader, unit, &value).map_err(text)?;
    let list = list.ok_or("its location is stated in an unknown form")?;
    let found = location_list::covering(reader, unit, list, address, |found| evaluate(unit, found));
    found.map_err(text)?.ok_or_else(|| "no location is stated for the entry".to_owned())
}

fn evaluate(
    unit: &Unit<'_>,
    expression: Expression<Slice<'_>>,
    base: Option<i64>,
    machine: Machine,
) -> ParamLocation {
    if expression.0.is_empty() {
        return unknown("it has been optimised away");
    }
    match single_operation(unit, expression) {
        Some(Operation::Register { register }) => ParamLocation::Register(register.0),
        Some(Operation::FrameOffset { offset }) => match base {
            Some(base) => stack_slot(base.checked_add(offset), machine),
            None => unknown(OWN_FRAME),
        },
        Some(Operation::RegisterOffset { register, offset, .. }) if is_stack_pointer(register, machine) => {
            stack_slot(Some(offset), machine)
        }
        Some(Operation::EntryValue { .. }) => unknown("its location is stated as an entry value"),
        Some(_) => unknown("it is not in one place"),
        None if refers_to_callers(unit, expression) => {
            unknown("the compiler took it out of this copy's parameters")
        }
        None => unknown("its value has to be computed"),
    }
}

fn unknown(why: &str) -> ParamLocation {
    ParamLocation::Unknown(why.to_owned())
}

/// Returns the only operation of an expression; `None` when it has several or cannot be read.
pub(super) fn single_operation<'s>(
    unit: &Unit<'_>,
    expression: Expression<Slice<'s>>,
) -> Option<Operation<Slice<'s>>> {
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

/// Returns a slot counted from the stack pointer at the entry. Below the caller's part the stack belongs to
/// the function, which has not written it yet.
fn stack_slot(sp_offset: Option<i64>, machine: Machine) -> ParamLocation {
    match (sp_offset, pushed_by_call(machine)) {
        (Some(sp_offset), Some(lowest)) if sp_offset >= lowest => ParamLocation::EntryStack { sp_offset },
        (Some(_), Some(_)) => unknown(OWN_FRAME),
        _ => unknown("its place on the stack is not known for this processor"),
    }
}

#[cfg(test)]
mod tests {
    use super::{ParamLocation, is_in_own_frame, stack_slot};
    use crate::elf::Machine;

    #[test]
    fn stack_slots_at_the_entry() {
        let stack = |sp_offset| ParamLocation::EntryStack { sp_offset };
        assert_eq!(stack_slot(Some(8), Machine::X86_64), stack(8));
        assert_eq!(stack_slot(Some(16), Machine::X86_64), stack(16));
        assert_eq!(stack_slot(Some(0), Machine::Aarch64), stack(0));
        for (offset, machine) in [(0, Machine::X86_64), (-16, Machine::X86_64), (-8, Machine::Aarch64)] {
            assert!(is_in_own_frame(&stack_slot(Some(offset), machine)));
        }
        for (offset, machine) in [(None, Machine::X86_64), (Some(0), Machine::Other(21))] {
            let found = stack_slot(offset, machine);
            assert!(!found.is_known() && !is_in_own_frame(&found));
        }
    }
}
