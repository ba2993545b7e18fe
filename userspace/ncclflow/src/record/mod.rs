//! One recording from beginning to end: targets found, probes attached, records drained, files written,
//! probes detached.

// What is asked for, and what is traced.
mod options;
mod recorder;
mod setup;

// Processes and libraries that come and go, with `--all`.
mod follow;
mod libraries;

// While the session is open: its threads, and what it watches.
mod mailbox;
mod session;
mod threads;
mod watch;

mod flag_file;
mod hang;
mod windows;

// From records to files.
mod bindings;
mod consumers;
mod gaps;
mod neighbours;
mod output;
mod pipeline;
mod processes;

// What is written at the end, and made again of a capture.
mod limit;
mod replay;
mod report;
mod results;

pub use gaps::Gaps;
pub use options::{Notice, Outcome, ProbeChoice, RecordOptions, StopHandle, Targets, WindowOptions};
pub use pipeline::Pipeline;
pub use recorder::record;
pub use replay::{Replayed, replay};
pub use setup::{LibraryInUse, Setup, Target, Wanted};
