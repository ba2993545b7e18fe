//! The registers that a function's arguments arrive in.

use nccl_library::{elf::Machine, symbols::argument_registers};
use ncclflow_common::STACK_POINTER_SLOT;

use super::error::PlanError;

/// Returns the slot of a plan that holds a register's value when the plan begins. The register is given by
/// its DWARF number (x86-64: System V psABI, figure 3.36; aarch64: AADWARF64 §4.1).
pub(super) fn argument_slot(machine: Machine, register: u16) -> Result<u8, PlanError> {
    let stack_pointer = match machine {
        Machine::X86_64 => 7,
        Machine::Aarch64 => 31,
        Machine::Other(_) => return Err(PlanError::Machine(machine)),
    };
    if register == stack_pointer {
        return Ok(STACK_POINTER_SLOT);
    }
    let arguments = (0..).zip(argument_registers(machine));
    let mut slots = arguments.filter(|(_, known)| **known == register).map(|(slot, _)| slot);
    slots.next().ok_or(PlanError::Register(register))
}
