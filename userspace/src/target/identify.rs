//! Which of the files that a process has mapped are NCCL.
//!
//! A file's name is believed at once. Without one that says so the content decides: a file that exports NCCL's calls and states
//! NCCL's version is NCCL under another name; one that only states the version has it inside, linked statically. A
//! library that merely wraps NCCL's calls states no version.

use std::collections::HashMap;

use super::{library::MappedLibrary, maps::Mapping, process::Process};
use crate::{
    elf::{Budget, Image, SymbolTable, may_export},
    symbols::stated_version,
};

/// Calls that every NCCL exports.
const CALLS: [&str; 2] = ["ncclCommInitRank", "ncclAllReduce"];
/// Bytes that are read of one file to tell: the largest official library has 0.6 MB of exported symbols and 0.5 MB of
/// strings, and frameworks with NCCL inside some tens.
const MAX_BYTES: u64 = 256 << 20;

/// How much of a file is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// What it exports: some kilobytes.
    Exports,
    /// And whether NCCL is inside: all its constants.
    Constants,
}

/// Remembers of each file whether it is NCCL: most processes of a host map the same ones.
#[derive(Debug, Default)]
pub struct Identifier {
    /// By device and inode, and by what was looked at.
    known: HashMap<((u32, u32), u64, bool), bool>,
}

impl Identifier {
    /// Whether the file of a mapping is NCCL by its content.
    pub(super) fn is_nccl(&mut self, process: &Process, mapping: &Mapping, depth: Depth) -> bool {
        let key = (mapping.device, mapping.inode, depth == Depth::Constants);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        // What cannot be opened or read is no library that could be used.
        let answer = MappedLibrary::open(process, mapping).is_ok_and(|file| holds_nccl(&file, depth));
        self.known.insert(key, answer);
        answer
    }
}

fn holds_nccl(file: &MappedLibrary, depth: Depth) -> bool {
    let mut budget = Budget::new(MAX_BYTES, u64::MAX);
    let Some(image) = file.try_clone_file().ok().and_then(|file| Image::from_file(file).ok()) else {
        return false;
    };
    let exports = exports_calls(&image, &mut budget).unwrap_or(false);
    (exports || depth == Depth::Constants)
        && stated_version(&image, &mut budget).is_ok_and(|version| version.is_some())
}

fn exports_calls(image: &Image, budget: &mut Budget) -> Result<bool, crate::elf::Error> {
    for call in CALLS {
        if !may_export(image, call, budget)? {
            return Ok(false);
        }
    }
    let Some(table) = SymbolTable::read_exported(image, budget)? else { return Ok(false) };
    let found = |call: &str| table.functions().any(|function| function.name == call);
    Ok(CALLS.iter().all(|call| found(call)))
}
