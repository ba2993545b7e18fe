//! Targets: processes, and the NCCL libraries that they have mapped.

pub mod library;
pub mod maps;
pub mod process;

pub use library::{LibraryError, LibraryId, MappedLibrary, nccl_libraries};
pub use process::{Process, ProcessError};
