//! ncclflow's files against the truth: one module per question, one function per module.
//!
//! Every check returns [`Findings`]: what differs, in words that name the op, and how much was compared. A
//! check that compared nothing has not passed, so tests end with [`Findings::assert_clean`].

pub mod api;
pub mod api_returns;
pub mod identity;
mod measured;
pub mod ops;
pub mod pat;
pub mod pattern_calls;
pub mod plugin;
pub mod sums;
pub mod symmetry;
pub mod topology;
pub mod transfers;
pub mod witnesses;

use std::fmt;

pub use api::check as api_calls;
pub use api::check_arguments as api_arguments;
pub use api_returns::check as api_returns;
pub use identity::check as identity;
pub use pat::check as pat_messages;
pub use pattern_calls::check as against_pattern_calls;
pub use plugin::check as against_plugin;
pub use sums::check as ring_all_reduce_sums;
pub use symmetry::check as symmetry;
pub use topology::check as topology;
pub use transfers::check as against_transfers;
pub use witnesses::check as witnesses;

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// How many things were compared; each check says what it counts.
    pub compared: u64,
    pub mismatches: Vec<String>,
}

/// More mismatches than these have one cause, and nobody reads them.
const SHOWN: usize = 20;

impl Findings {
    /// Counts one comparison.
    fn compare(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        self.compared += 1;
        if !holds {
            self.mismatches.push(otherwise());
        }
    }

    /// Something that should be there is not, or the other way round.
    fn complain(&mut self, mismatch: String) {
        self.mismatches.push(mismatch);
    }

    pub fn is_clean(&self) -> bool {
        self.mismatches.is_empty() && self.compared > 0
    }

    /// # Panics
    /// If anything differs, or nothing was compared.
    pub fn assert_clean(&self, check: &str) {
        assert!(self.is_clean(), "{check}: {self}");
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} compared, {} mismatches", self.compared, self.mismatches.len())?;
        for mismatch in self.mismatches.iter().take(SHOWN) {
            write!(formatter, "\n  {mismatch}")?;
        }
        if self.mismatches.len() > SHOWN {
            write!(formatter, "\n  and {} more", self.mismatches.len() - SHOWN)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
