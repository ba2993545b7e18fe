//! The registers that a function's arguments arrive in, by their DWARF numbers. x86-64: System V psABI,
//! figure 3.36; aarch64: AADWARF64 §4.1.

use nccl_library::elf::Machine;
use ncclflow_common::{ARG_SLOTS, STACK_POINTER_SLOT};

use super::error::PlanError;

/// rdi rsi rdx rcx r8 r9
const X86_64: [u16; 6] = [5, 4, 1, 2, 8, 9];
const X86_64_STACK_POINTER: u16 = 7;
const AARCH64_STACK_POINTER: u16 = 31;

/// The slot of a plan that a register's value is in when the plan begins.
pub(super) fn argument_slot(machine: Machine, register: u16) -> Result<u8, PlanError> {
    let (argument, stack_pointer) = match machine {
        Machine::X86_64 => (X86_64.iter().position(|known| *known == register), X86_64_STACK_POINTER),
        Machine::Aarch64 => {
            (Some(usize::from(register)).filter(|number| *number < ARG_SLOTS), AARCH64_STACK_POINTER)
        }
        other @ Machine::Other(_) => return Err(PlanError::Machine(other)),
    };
    if register == stack_pointer {
        return Ok(STACK_POINTER_SLOT);
    }
    argument.and_then(|slot| u8::try_from(slot).ok()).ok_or(PlanError::Register(register))
}

/// The registers of the first three arguments.
pub(super) fn first_registers(machine: Machine) -> [u16; 3] {
    match machine {
        Machine::X86_64 => [X86_64[0], X86_64[1], X86_64[2]],
        Machine::Aarch64 | Machine::Other(_) => [0, 1, 2],
    }
}
