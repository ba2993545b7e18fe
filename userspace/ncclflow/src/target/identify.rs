//! Which of the files that a process has mapped are NCCL, or contain it.
//!
//! A file that is named like NCCL is taken for NCCL. Of others the content decides: a file with NCCL's
//! version string contains NCCL. If it exports NCCL's calls, it is NCCL under another name. A library that
//! only wraps NCCL's calls has no version string.

use std::{collections::HashMap, fmt, fs::File, io, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    library::{LibraryId, MappedLibrary, read_small},
    maps::Mapping,
    mounts::{MountTable, Unsafe},
    process::Process,
};
use nccl_library::{
    elf::{Budget, Image, SymbolTable, may_export},
    nccl::find_versions,
};

/// Calls that every NCCL exports.
const CALLS: [&str; 2] = ["ncclCommInitRank", "ncclAllReduce"];
/// Bytes that are read of one file to tell: the largest official library has 0.6 MB of exported symbols and
/// 0.5 MB of strings, and frameworks with NCCL inside some tens.
const MAX_BYTES: u64 = 256 << 20;
/// Files that are remembered. When there are more, all are forgotten.
const MAX_KNOWN: usize = 1 << 16;

/// How much of a file is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Depth {
    /// What it exports: some kilobytes.
    Exports,
    /// And whether NCCL is inside: all its constants.
    Constants,
}

/// What shows that a file is NCCL, or holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// It is called `libnccl…`.
    Name,
    /// It exports NCCL's calls, and states a version of NCCL.
    Exports,
    /// Linked statically: its symbol table has NCCL's calls, and it states a version of NCCL.
    Symbols,
    /// Linked statically: it states a version of NCCL; there is no symbol of NCCL's, as it was stripped.
    VersionString,
}

/// Why a file is not looked at. Nothing of it was touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotAsked {
    FileSystem(Unsafe),
    /// Whoever asked for it, or for its neighbours on this device, did not come back.
    GivenUp,
}

impl fmt::Display for NotAsked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileSystem(why) => why.fmt(f),
            Self::GivenUp => f.write_str(
                "its file system did not answer when it, or another file there, was asked for before; it is not asked again",
            ),
        }
    }
}

impl From<NotAsked> for io::Error {
    fn from(why: NotAsked) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, why.to_string())
    }
}

/// A file as the lines of `/proc/PID/maps` name it: device, major and minor, and inode.
pub(crate) type Named = ((u32, u32), u64);

type Judge = Box<dyn FnMut(File, Depth) -> Option<Evidence> + Send>;

/// Looks at the files of processes, and remembers of each whether it is NCCL: most processes of a host map the
/// same ones.
pub(crate) struct Identifier {
    /// By file, and by how much of it was looked at.
    known: HashMap<(LibraryId, Depth), Option<Evidence>>,
    mounts: MountTable,
    /// Files, and devices (with inode 0), that are not asked.
    given_up: Vec<Named>,
    /// Is told of each file before its file system is asked for it.
    before: Box<dyn FnMut(Named) + Send>,
    judge: Judge,
}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identifier").field("known", &self.known.len()).finish_non_exhaustive()
    }
}

impl Default for Identifier {
    fn default() -> Self {
        Self::new(Box::new(|_| {}), Box::new(evidence))
    }
}

impl Identifier {
    pub(crate) fn new(before: Box<dyn FnMut(Named) + Send>, judge: Judge) -> Self {
        let (known, mounts, given_up) = (HashMap::new(), MountTable::default(), Vec::new());
        Self { known, mounts, given_up, before, judge }
    }

    /// What is not to be asked from now on; with `allow_fuse` file systems that may block or lie are asked.
    pub(crate) fn set_limits(&mut self, allow_fuse: bool, given_up: Vec<Named>) {
        self.mounts.allow_fuse = allow_fuse;
        self.given_up = given_up;
    }

    /// Before the files of a process are looked at.
    pub(crate) fn begin(&mut self, process: &Process) {
        self.mounts.refresh(process.pid());
    }

    /// What shows that the file of a mapping is NCCL or holds it, by its name or all its content.
    pub(crate) fn evidence(
        &mut self,
        process: &Process,
        mapping: &Mapping,
    ) -> Result<Option<Evidence>, NotAsked> {
        if mapping.is_nccl() {
            return Ok(Some(Evidence::Name));
        }
        self.judge(process, mapping, Depth::Constants)
    }

    /// The same by its content, looked at so far.
    pub(crate) fn judge(
        &mut self,
        process: &Process,
        mapping: &Mapping,
        depth: Depth,
    ) -> Result<Option<Evidence>, NotAsked> {
        self.may_ask(mapping)?;
        // What cannot be opened or read is no library that could be used.
        let Ok(file) = MappedLibrary::open(process, mapping, &self.mounts) else { return Ok(None) };
        if let Some(known) = self.known.get(&(file.id, depth)) {
            return Ok(*known);
        }
        let answer = file.open_file().ok().and_then(|file| (self.judge)(file, depth));
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert((file.id, depth), answer);
        Ok(answer)
    }

    /// Takes hold of the file of a mapping, if it may be asked for.
    pub(crate) fn open(&mut self, process: &Process, mapping: &Mapping) -> io::Result<MappedLibrary> {
        self.may_ask(mapping)?;
        MappedLibrary::open(process, mapping, &self.mounts)
    }

    /// A small file in the folder of a mapped one, or of that folder: `path` as the process names it.
    pub(crate) fn read_beside(
        &mut self,
        process: &Process,
        mapping: &Mapping,
        path: &Path,
        limit: u64,
    ) -> io::Result<Vec<u8>> {
        self.may_ask(mapping)?;
        let check = |device| Ok(self.mounts.check_number(device).map_err(NotAsked::FileSystem)?);
        read_small(process, path, limit, check)
    }

    fn may_ask(&mut self, mapping: &Mapping) -> Result<(), NotAsked> {
        self.mounts.check(mapping.device).map_err(NotAsked::FileSystem)?;
        if self
            .given_up
            .iter()
            .any(|(device, inode)| *device == mapping.device && (*inode == mapping.inode || *inode == 0))
        {
            return Err(NotAsked::GivenUp);
        }
        (self.before)((mapping.device, mapping.inode));
        Ok(())
    }
}

/// What the content of a file shows.
pub(crate) fn evidence(file: File, depth: Depth) -> Option<Evidence> {
    let mut budget = Budget::new(MAX_BYTES, u64::MAX);
    let image = Image::from_file(file).ok()?;
    let exports = exports_calls(&image, &mut budget).unwrap_or(false);
    if !exports && depth == Depth::Exports {
        return None;
    }
    find_versions(&image, &mut budget).ok().flatten()?;
    Some(if exports {
        Evidence::Exports
    } else if has_calls(SymbolTable::read(&image, &mut budget)).unwrap_or(false) {
        Evidence::Symbols
    } else {
        Evidence::VersionString
    })
}

fn exports_calls(image: &Image, budget: &mut Budget) -> Result<bool, nccl_library::elf::Error> {
    for call in CALLS {
        if !may_export(image, call, budget)? {
            return Ok(false);
        }
    }
    has_calls(SymbolTable::read_exported(image, budget))
}

fn has_calls(
    table: Result<Option<SymbolTable>, nccl_library::elf::Error>,
) -> Result<bool, nccl_library::elf::Error> {
    let Some(table) = table? else { return Ok(false) };
    let found = |call: &str| table.functions().any(|function| function.name == call);
    Ok(CALLS.iter().all(|call| found(call)))
}
