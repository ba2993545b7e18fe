//! Locations of a function's parameters when its first instruction is about to run.

use serde::{Deserialize, Serialize};

use crate::elf::Machine;

/// Location of a parameter's value at the entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamLocation {
    /// Register of that DWARF number. Narrow values: only the low bytes count.
    Register(u16),
    /// Memory at the stack pointer as it is at the entry, plus `sp_offset` bytes.
    EntryStack {
        /// Bytes; on x86-64 the return address is at 0, so the first stack parameter is at 8.
        sp_offset: i64,
    },
    /// Not known, and why.
    Unknown(String),
}

impl ParamLocation {
    pub fn is_known(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }
}

/// Returns the bytes that a call pushes. The canonical frame address is the stack pointer before the call. At
/// the entry, an x86-64 call has pushed 8 bytes of return address since; one of 64-bit Arm has pushed
/// nothing.
pub(crate) fn pushed_by_call(machine: Machine) -> Option<i64> {
    match machine {
        Machine::X86_64 => Some(8),
        Machine::Aarch64 => Some(0),
        Machine::Other(_) => None,
    }
}
