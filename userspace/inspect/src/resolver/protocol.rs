//! Questions to the children, and their answers.

use std::{fs::Metadata, os::unix::fs::MetadataExt as _, path::PathBuf};

use cpython::Version;
use nccl_library::symbols::{
    DebugFiles, Request as SymbolRequest, nccl_request, nccl_request_of_memory, nccl_request_with_api,
};
use serde::{Deserialize, Serialize};

use crate::process::{
    Evidence, LibraryId, Unfinished,
    identify::{Depth, SilentFiles},
    library::FileSystem,
    maps::Mapping,
    raw_path,
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
}

impl What {
    pub fn request(self) -> SymbolRequest {
        match self {
            Self::Ops => nccl_request(),
            Self::Api => nccl_request_with_api(),
            Self::Dump => nccl_request_of_memory(),
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

/// A question to the looker. A library comes as a descriptor that holds it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Finds out which of the process's files are NCCL.
    Look {
        pid: u32,
        limits: Limits,
    },
    HasNccl {
        pid: u32,
        limits: Limits,
    },
    /// Finds NCCL as `Look` does, except that NCCL by its name needs no other evidence.
    Libraries {
        pid: u32,
        wanted: Option<RawPath>,
        limits: Limits,
    },
    /// Takes hold of the file of this mapping.
    Open {
        pid: u32,
        mapping: Mapping,
        limits: Limits,
    },
    /// Reads the version that a package of Python states, of which this mapped library is part.
    PackageVersion {
        pid: u32,
        mapping: Mapping,
        limits: Limits,
    },
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
    /// Asks for the state of a file, and bytes of it.
    Check {
        places: Vec<(u64, u32)>,
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
    Resolve { what: What, debug_files: DebugFiles },
    Symbols { of_nccl: Option<DebugFiles>, at: Option<Vec<u64>> },
    Interpreter,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RawPath(#[serde(with = "raw_path")] pub(crate) PathBuf);

/// A mapped file. Its descriptor comes at the same place among the descriptors.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) id: LibraryId,
    pub(super) file_system: FileSystem,
    pub(super) path: RawPath,
    pub(super) deleted: bool,
}

/// An error of the operating system.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OsError {
    pub(super) number: Option<i32>,
    pub(super) text: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Looked {
    pub(super) libraries: Vec<(Held, Evidence)>,
    pub(super) unopened: Vec<(RawPath, OsError)>,
    pub(super) not_asked: Option<String>,
    pub(super) unfinished: Option<Unfinished>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum NoLibraries {
    Maps(OsError),
    NoNccl,
    Open(RawPath, OsError),
}

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

/// `_PyRuntime` in a file, and other places that are looked at. Distances are bytes from the file's first
/// byte, as it is loaded.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Interpreter {
    pub distance: u64,
    pub version: Option<Version>,
    /// Distance of `PyDict_Type`.
    pub dict_type: Option<u64>,
    /// Distance of the variables that begin as zero, and their bytes.
    pub zeroed: Option<(u64, u64)>,
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

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// Result of the look; `None` if the process has no NCCL, or has ended.
    Looked(Option<Looked>),
    Denied,
    HasNccl(bool),
    Libraries(Result<Vec<Held>, NoLibraries>),
    Held(Held),
    /// The file's state. The bytes come one place after the other.
    Checked(Status),
    /// The bytes that were asked for come.
    Read,
    /// The reader's answer, which comes as bytes, and the state of the file before and after it was read.
    FromReader {
        before: LibraryId,
        after: LibraryId,
    },
    /// The reader ended; the text says how.
    ReaderDied(String),
    Failed(OsError),
}

impl From<&std::io::Error> for OsError {
    fn from(error: &std::io::Error) -> Self {
        Self { number: error.raw_os_error(), text: error.to_string() }
    }
}

impl From<OsError> for std::io::Error {
    fn from(OsError { number, text }: OsError) -> Self {
        number.map_or_else(|| Self::other(text), Self::from_raw_os_error)
    }
}
