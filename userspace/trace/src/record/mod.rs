//! One recording from beginning to end: finds targets, attaches probes, drains records, writes files,
//! detaches probes.

// Options and targets.
mod options;
mod own_limits;
mod setup;

// The recording, and what it watches meanwhile.
mod recorder;
mod stacks;
mod watch;

mod container_flags;
mod hang;
mod silent_containers;
mod stillness;
mod window_export;
mod window_flag;
mod window_flags;
mod windows;

// Processes and libraries that come and go, with `--all`.
mod find_and_load;
mod follow;
mod libraries;
mod pidfd;
mod probe_fingerprint;
mod reaper;

// From the drain to the threads that take records.
mod arrivals;
mod consumers;
mod mailbox;
mod taker;
mod threads;

// From records to files.
mod file_watch;
mod iterations;
mod make_lines;
mod named_files;
mod row_watch;

// Results known at the end.
mod accounts;
mod ending;
mod limit;
mod report;

pub use options::{
    FilesOptions, FilesWhen, Notice, Outcome, ProbeChoice, RecordOptions, StackChoice, StackKind, StopHandle,
    Targets, WindowOptions,
};
pub use recorder::record;
pub use setup::{LibraryInUse, Setup, Target};
