//! torch's own notes of its collectives, read from the memory of running processes: the rings of its flight
//! recorder and the status of its process groups. The crate `torch` knows their layouts; this module knows
//! the process and its files.
//!
//! Nothing is prepared in the processes, and nothing is stopped. If a process's torch is not understood, its
//! report says why.

mod find;
mod report;
mod rings;

pub(crate) use find::Builds;
pub use report::{EntryReport, NotesReport, ProcessGroupReport, RingReport, StatusReport, WorkReport};
pub(crate) use rings::{look, report_of};
