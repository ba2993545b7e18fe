//! Finds the interpreter of a process: the mapped file that has `_PyRuntime`, and its address in memory.

use std::{
    collections::BTreeMap,
    os::unix::ffi::OsStrExt as _,
    sync::{Mutex, PoisonError},
};

use cpython::{NOT_INITIALISED, Python, Statics, Unreadable, Version, locate::Runtime};
use nccl_library::elf::RuntimeAddr;

use super::walk::word;
use crate::{
    memory::Memory,
    process::{LibraryId, Process, maps::Mapping, printable},
    resolver,
};

/// Memory of a process, in the form that the crates `cpython` and `torch` read it.
#[derive(Clone, Copy, Debug)]
pub struct TargetMemory<'p>(Memory<'p>);

impl<'p> TargetMemory<'p> {
    pub fn new(process: &'p Process) -> Self {
        Self(Memory::new(process))
    }
}

impl cpython::Memory for TargetMemory<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.0.read(RuntimeAddr(address), into).map_err(|_| Unreadable(address))
    }

    fn copies(&self, pieces: &[(u64, usize)]) -> Vec<Option<Vec<u8>>> {
        let places: Vec<_> = pieces.iter().map(|(at, bytes)| (RuntimeAddr(*at), *bytes)).collect();
        self.0.copies(&places).unwrap_or_else(|_| vec![None; pieces.len()])
    }
}

/// An interpreter in a process.
#[derive(Clone, Debug)]
pub struct Found {
    pub python: Python,
    /// Static data of the interpreter; `None` where its file does not say where they are.
    pub statics: Option<Statics>,
}

/// Returns the addresses of an interpreter's static data, of a file that begins at `start`.
fn statics(file: &Runtime, start: u64) -> Option<Statics> {
    let (zeroed, bytes) = file.zeroed?;
    let zeroed = start.checked_add(zeroed)?;
    let dict_type = start.checked_add(file.dict_type?)?;
    Some(Statics { dict_type, zeroed: zeroed..zeroed.checked_add(bytes)? })
}

/// Interpreters in files that were read before: several processes map the same ones.
#[derive(Debug, Default)]
pub struct Runtimes {
    /// Results by file. The lock is held while a file is read, so that others who want it wait.
    files: Mutex<BTreeMap<LibraryId, Result<Option<Runtime>, String>>>,
}

impl Runtimes {
    /// Finds the interpreter of a process; `None` if it is no Python program.
    ///
    /// # Errors
    /// A sentence that says why an interpreter that seems to be there is not understood.
    pub fn find(&self, process: &Process) -> Result<Option<Found>, String> {
        let mappings = resolver::maps(process.live_thread())
            .map_err(|error| format!("its mappings cannot be read: {error}"))?;
        let memory = TargetMemory::new(process);
        let mut why_not = None;
        for mapping in candidates(process, &mappings) {
            let known = match self.of_file(process, mapping) {
                Ok(Some(known)) => known,
                // The program itself need not be an interpreter.
                Ok(None) if !is_library(mapping) => continue,
                Ok(None) => {
                    let name = printable(&mapping.path.to_string_lossy());
                    why_not.get_or_insert_with(|| {
                        format!("`{name}` has no `_PyRuntime` that can be found (3.7 and later have it)")
                    });
                    continue;
                }
                Err(error) => {
                    why_not.get_or_insert(error);
                    continue;
                }
            };
            let name = mapping.path.file_name().unwrap_or_default().to_string_lossy();
            let version = known.version.or_else(|| Version::from_file_name(&name));
            match Python::at(&memory, mapping.start.0.wrapping_add(known.distance), version) {
                // A library that another one brought along may not be the one that runs.
                Ok(python) if is_initialised(&python, memory) => {
                    return Ok(Some(Found { python, statics: statics(&known, mapping.start.0) }));
                }
                Ok(_) => why_not.get_or_insert_with(|| NOT_INITIALISED.to_string()),
                Err(unknown) => why_not.get_or_insert_with(|| unknown.to_string()),
            };
        }
        why_not.map_or(Ok(None), Err)
    }

    fn of_file(&self, process: &Process, mapping: &Mapping) -> Result<Option<Runtime>, String> {
        let file = resolver::open_mapping(process, mapping).map_err(|error| error.to_string())?;
        let ask = || resolver::interpreter(&file).map_err(|error| error.to_string());
        self.files.lock().unwrap_or_else(PoisonError::into_inner).entry(file.id).or_insert_with(ask).clone()
    }
}

fn is_initialised(python: &Python, memory: TargetMemory<'_>) -> bool {
    let at = python.runtime.wrapping_add(u64::from(python.offsets.runtime.interpreters_head));
    word(&memory, at).is_some_and(|head| head != 0)
}

fn is_library(mapping: &Mapping) -> bool {
    mapping.path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"libpython"))
}

/// Returns mappings of the first byte of files that may be an interpreter: libraries of its name, and the
/// program itself.
fn candidates<'m>(process: &Process, mappings: &'m [Mapping]) -> Vec<&'m Mapping> {
    /// Maximum number of candidates; a process maps one interpreter, or none.
    const MAX: usize = 8;
    let program = std::fs::read_link(process.proc_path().join("exe")).unwrap_or_default();
    // The kernel adds this to the name of a file that was replaced since.
    let program = program.as_os_str().as_bytes();
    let program = program.strip_suffix(b" (deleted)").unwrap_or(program);
    let mut found: Vec<&Mapping> = Vec::new();
    let begins = |mapping: &&Mapping| mapping.inode != 0 && mapping.file_offset.0 == 0;
    for mapping in mappings.iter().filter(begins) {
        let is_new = found.iter().all(|other| (other.device, other.inode) != (mapping.device, mapping.inode));
        if is_new && (is_library(mapping) || mapping.path.as_os_str().as_bytes() == program) {
            found.push(mapping);
        }
    }
    found.sort_by_key(|mapping| !is_library(mapping));
    found.truncate(MAX);
    found
}
