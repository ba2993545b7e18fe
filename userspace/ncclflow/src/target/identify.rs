//! Which of the files that a process has mapped are NCCL, or contain it.
//!
//! A file that is named like NCCL is taken for NCCL. Of others the content decides: a file with NCCL's
//! version string contains NCCL. If it exports NCCL's calls, it is NCCL under another name. A library that
//! only wraps NCCL's calls has no version string.

use std::{collections::HashMap, fs, os::unix::fs::MetadataExt as _};

use serde::{Deserialize, Serialize};

use super::{library::MappedLibrary, maps::Mapping, process::Process};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Depth {
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

/// Identifies a file and its content: whatever changes the content changes the ctime too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileIdentity {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// Remembers of each file whether it is NCCL: most processes of a host map the same ones.
#[derive(Debug, Default)]
pub struct Identifier {
    /// By file, and by how much of it was looked at.
    known: HashMap<(FileIdentity, Depth), Option<Evidence>>,
}

impl Identifier {
    /// What shows that the file of a mapping is NCCL or holds it, by its name or all its content.
    pub fn evidence(&mut self, process: &Process, mapping: &Mapping) -> Option<Evidence> {
        if mapping.is_nccl() {
            return Some(Evidence::Name);
        }
        self.judge(process, mapping, Depth::Constants)
    }

    /// The same by its content, looked at so far.
    pub(super) fn judge(&mut self, process: &Process, mapping: &Mapping, depth: Depth) -> Option<Evidence> {
        let identity = identity(process, mapping);
        if let Some(known) = identity.and_then(|identity| self.known.get(&(identity, depth))) {
            return *known;
        }
        // What cannot be opened or read is no library that could be used.
        let answer = MappedLibrary::open(process, mapping).ok().and_then(|file| evidence(&file, depth));
        if let Some(identity) = identity {
            if self.known.len() >= MAX_KNOWN {
                self.known.clear();
            }
            self.known.insert((identity, depth), answer);
        }
        answer
    }
}

/// Without opening the file: opening a device, or a file that is locked, could do something.
fn identity(process: &Process, mapping: &Mapping) -> Option<FileIdentity> {
    let by_range = process.proc_path().join("map_files").join(mapping.range_name());
    let metadata = fs::metadata(by_range).ok()?;
    metadata.is_file().then(|| FileIdentity {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

fn evidence(file: &MappedLibrary, depth: Depth) -> Option<Evidence> {
    let mut budget = Budget::new(MAX_BYTES, u64::MAX);
    let image = file.try_clone_file().ok().and_then(|file| Image::from_file(file).ok())?;
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
