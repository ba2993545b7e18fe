//! Files of torch's flight recorder, as torch itself dumps them: `<prefix><global rank>`, a pickle of version
//! 2.10.
//!
//! torch's readers (`torchfrtrace`, torch/distributed/flight_recorder) want one file for each rank of the
//! job. Keys, their types and the form of a missing value are those of torch 2.11 to 2.15
//! (torch/csrc/distributed/c10d/FlightRecorder.hpp, FlightRecorderDetail.hpp). torch's own values are of
//! `c10::IValue`, so integers are signed and have 64 bits.
//!
//! [`DumpWriter`] takes one entry after the other, for files that memory cannot hold.

mod dump_writer;
mod entry;
mod global_ranks;
mod operation;
mod pickle;
#[cfg(test)]
mod tests;

pub use dump_writer::DumpWriter;
pub use entry::{Entry, GroupStatus, ProcessGroup, State, UNKNOWN, Work};
pub use global_ranks::{GlobalRanks, Places};
pub use operation::{Function, Operation};

/// The version of the format, as torch counts it.
pub const VERSION: &str = "2.10";

/// Content of a rank's file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dump {
    /// The version of NCCL: `2.28.9`.
    pub comm_lib_version: Option<String>,
    pub groups: Vec<ProcessGroup>,
    /// Entries in the order in which they were recorded.
    pub entries: Vec<Entry>,
}
