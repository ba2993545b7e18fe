//! Makes files out of recordings: all of them, or a part by time, communicator and process, of one or several
//! hosts and windows.
//!
//! A new format is a file here with a type that implements [`View`], and a variant of [`Format`] with its
//! line in [`Format::open`].
//!
//! Rows come from each source in turn ([`source`]), through the same pipeline as live records. Rows that are
//! not asked for are left out ([`choice`]); where two sources have the same rank, the second gets a place of
//! its own ([`ranks`]); the rest goes to the view.

mod call_numbers;
mod chakra;
mod choice;
mod chosen_rows;
mod compat;
mod flight_recorder;
mod format;
mod inspector;
mod job;
mod job_ranks;
mod json_lines;
mod megatrace;
mod megatrace_lines;
mod moment;
mod parquet;
mod perfetto;
mod ranks;
mod run;
mod source;
mod who;

pub(crate) use call_numbers::CallNumbers;
pub use choice::{Choice, RankRange};
pub use chosen_rows::RowCounts;
pub use flight_recorder::RankFiles;
pub use format::{Format, InspectorVersion, View, ViewOptions};
pub use moment::{Moment, duration};
pub use ranks::TwiceReport;
pub(crate) use run::Chosen;
pub use run::{ExportOptions, ExportProgress, Exported, SourceReport, export};
pub use source::{Source, recordings_in, sources};
