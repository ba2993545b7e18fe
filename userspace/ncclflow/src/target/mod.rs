//! Targets: processes, and the NCCL libraries that they have mapped.

pub mod census;
pub mod container;
pub mod description;
pub mod discover;
pub mod filter;
pub mod identify;
pub mod library;
pub mod maps;
pub(crate) mod mounts;
pub mod pid_namespace;
pub mod proc_text;
pub mod process;
pub(crate) mod raw_path;
mod returns;

pub use census::Census;
pub use container::Container;
pub use description::{Description, Users, age_seconds};
pub use discover::{Denied, Discovered, Sighting, denied_remedy, pids};
pub use filter::Filter;
pub use identify::Evidence;
pub use library::{LibraryError, LibraryId, MappedLibrary};
pub use pid_namespace::in_first_pid_namespace;
pub use proc_text::{MAX_TEXT, read_text, status_field};
pub use process::{Process, ProcessError};
pub(crate) use returns::{can_end_processes, no_return_probes};

/// Makes a name or path that the target chose safe for root's terminal: control characters, and so escape
/// sequences, are replaced.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
