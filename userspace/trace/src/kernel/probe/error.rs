//! The reasons for which a probe cannot be compiled.

use std::fmt;

use nccl_library::{elf::Machine, fields::MissingField};
use ncclflow_common::{MAX_STEPS, TEMP_SLOTS};

/// Reason for which a probe cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    Missing(MissingField),
    /// The function has no parameter of that name.
    NoParameter(&'static str),
    /// The parameter's location at the entry is not known; the text names the parameter and the reason.
    Parameter(String),
    /// The register, by its DWARF number, is no argument register of this machine.
    Register(u16),
    /// The machine's calling convention is not known to us.
    Machine(Machine),
    TooManySteps,
    TooManySlots,
    /// The record, of this many bytes, fits neither the largest class nor, where it has to, the smallest.
    TooLong(usize),
}

impl From<MissingField> for PlanError {
    fn from(error: MissingField) -> Self {
        Self::Missing(error)
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(missing) => write!(f, "{missing}"),
            Self::NoParameter(name) => write!(f, "the function has no parameter `{name}`"),
            Self::Parameter(what) => write!(f, "{what}"),
            Self::Register(number) => write!(f, "DWARF register {number} carries no argument"),
            Self::Machine(machine) => write!(f, "no calling convention known for {machine:?}"),
            Self::TooManySteps => write!(f, "what the probe reads takes more than {MAX_STEPS} steps"),
            Self::TooManySlots => {
                write!(f, "what the probe reads takes more than {} intermediate values", TEMP_SLOTS.len())
            }
            Self::TooLong(len) => write!(f, "the record would be {len} bytes long"),
        }
    }
}

impl std::error::Error for PlanError {}
