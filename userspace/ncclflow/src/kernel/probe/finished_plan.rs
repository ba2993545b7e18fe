//! What comes of building a plan.

use std::fmt;

use ncclflow_common::{FetchPlan, MAX_STEPS, RecordClass, TEMP_SLOTS};

use nccl_library::elf::Machine;

/// A plan and the program that can run it.
#[derive(Clone, Debug)]
pub struct FinishedPlan {
    pub plan: FetchPlan,
    pub class: &'static RecordClass,
}

/// Why a plan cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The parameter's location at the entry is not known; the text says which and why.
    Parameter(String),
    /// A register that is no argument register of this machine, by its DWARF number.
    Register(u16),
    /// The machine's calling convention is not known to us.
    Machine(Machine),
    TooManySteps,
    TooManySlots,
    /// The record would not fit the largest class, or the smallest where it has to, by its bytes.
    TooLong(usize),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter(what) => write!(f, "{what}"),
            Self::Register(number) => write!(f, "DWARF register {number} carries no argument"),
            Self::Machine(machine) => write!(f, "no calling convention known for {machine:?}"),
            Self::TooManySteps => write!(f, "the plan has more than {MAX_STEPS} steps"),
            Self::TooManySlots => {
                write!(f, "the plan needs more than {} intermediate values", TEMP_SLOTS.len())
            }
            Self::TooLong(len) => write!(f, "the record would be {len} bytes long"),
        }
    }
}

impl std::error::Error for PlanError {}
