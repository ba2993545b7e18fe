//! torch's own notes of its collectives, read from the memory of running processes: its flight recorder's rings and the
//! status of its process groups. The crate `torch` knows what they look like; here are the process and its files.
//!
//! Nothing is prepared in the processes, and nothing is stopped. A process whose torch is not understood says why.

mod find;
mod report;
mod rings;

pub(crate) use find::Builds;
pub use report::{EntryReport, NotesReport, ProcessGroupReport, RingReport, StatusReport, WorkReport};
pub(crate) use rings::{look, report_of};
