//! Targets: processes, and the NCCL libraries that they have mapped.

pub mod discover;
pub mod identify;
pub mod library;
pub mod maps;
pub mod process;

pub use discover::{Discovered, nccl_processes};
pub use library::{LibraryError, LibraryId, MappedLibrary, nccl_libraries};
pub use process::{Process, ProcessError};

/// A name or path of the target's choice, safe for root's terminal: control characters (and with them escape sequences) are
/// replaced.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
