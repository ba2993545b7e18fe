//! Locations of a function's parameters when its first instruction is about to run.

use serde::{Deserialize, Serialize};

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
