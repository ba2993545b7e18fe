//! Questions to the children, and their answers.

use std::{fs::Metadata, io, os::unix::fs::MetadataExt as _, path::PathBuf};

use nccl_library::{
    elf::FileOffset,
    symbols::{
        DebugFiles, Request as SymbolRequest, driver_request, nccl_request, nccl_request_of_memory,
        nccl_request_with_api,
    },
};
use serde::{Deserialize, Serialize};

use crate::process::{
    LibraryId,
    identify::{Depth, SilentFiles},
    maps::Mapping,
    os_error, raw_path,
};

/// Functions and structs that are looked up in a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Those that probes and the proxy's ops need.
    Ops,
    /// Those of `Ops`, and the exported functions.
    Api,
    /// Those that a dump needs to read memory.
    Dump,
    /// Exported functions of CUDA's driver.
    Driver,
}

impl What {
    pub fn request(self) -> SymbolRequest {
        match self {
            Self::Ops => nccl_request(),
            Self::Api => nccl_request_with_api(),
            Self::Dump => nccl_request_of_memory(),
            Self::Driver => driver_request(),
        }
    }
}

/// Files of `/proc/PID` whose reading can take a lock of the process, or read its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcFile {
    Maps,
    CommandLine,
    Environment,
}

impl ProcFile {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Maps => "maps",
            Self::CommandLine => "cmdline",
            Self::Environment => "environ",
        }
    }

    /// Returns the most bytes that are read.
    pub(super) fn limit(self) -> u64 {
        match self {
            // 65,530 mappings (the kernel's default limit) of about 100 bytes, and more.
            Self::Maps => 32 << 20,
            // The kernel gives arguments and environment 6 MiB together unless the stack's limit is raised.
            Self::CommandLine | Self::Environment => 8 << 20,
        }
    }
}

/// Limits on what may be asked for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Limits {
    pub(super) allow_fuse: bool,
    pub(super) silent: SilentFiles,
}

/// A question to the opener. A library comes as a descriptor that holds it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Finds out which of the process's files are NCCL. The answer has a
    /// [`Sighting`](crate::process::Sighting) of [`MappedFile`](crate::process::MappedFile)s, whose
    /// descriptors come in the same order.
    Look {
        pid: u32,
    },
    HasNccl {
        pid: u32,
    },
    /// Finds NCCL as `Look` does, except that NCCL by its name needs no other evidence.
    Libraries {
        pid: u32,
        wanted: Option<RawPath>,
    },
    /// Takes hold of the file of this mapping.
    Open {
        pid: u32,
        mapping: Mapping,
    },
    /// Reads the version that a package of Python states, of which this mapped library is part.
    PackageVersion {
        pid: u32,
        mapping: Mapping,
    },
    /// Has a file read by the reader. The reader's answer comes as bytes; this one has the state of the file
    /// before and after it was read.
    Parse(ReaderRequest),
    /// Asks for the state of a file, and its bytes at these places.
    Check {
        places: Vec<(FileOffset, u32)>,
    },
    Read {
        pid: u32,
        file: ProcFile,
    },
}

/// A question to the reader, sent with an open file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ReaderRequest {
    Judge(Depth),
    Resolve {
        what: What,
        debug_files: DebugFiles,
    },
    Symbols {
        of_nccl: Option<DebugFiles>,
        /// Addresses whose nearest functions are wanted; all functions without them.
        at: Option<Vec<u64>>,
    },
    /// Finds `_PyRuntime` in a file.
    Interpreter,
}

impl ReaderRequest {
    /// Returns the debug files that the reader may read.
    pub(super) fn debug_files(&self) -> DebugFiles {
        match self {
            Self::Resolve { debug_files, .. } | Self::Symbols { of_nccl: Some(debug_files), .. } => {
                debug_files.clone()
            }
            Self::Judge(_) | Self::Symbols { of_nccl: None, .. } | Self::Interpreter => DebugFiles::default(),
        }
    }
}

/// Reason for which a question has no answer. Answers have the types that their questions expect.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Failed {
    Error(#[serde(with = "os_error")] io::Error),
    /// The reader ended; the text says how.
    ReaderDied(String),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Error(error)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RawPath(#[serde(with = "raw_path")] pub(crate) PathBuf);

/// Most bytes at one place of a file that is checked.
pub(super) const MAX_PLACE: u32 = 64;

/// A file's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub id: LibraryId,
    /// Number of names of the file; 0 once it is deleted.
    pub links: u64,
}

impl Status {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { id: LibraryId::from(metadata), links: metadata.nlink() }
    }
}

/// A function of a symbol table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Symbol {
    pub address: u64,
    pub size: u64,
    pub name: Box<str>,
    /// Set if the function stands in the table; otherwise it was found by its code.
    pub(crate) in_table: bool,
}
