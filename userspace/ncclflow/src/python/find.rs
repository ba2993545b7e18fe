//! The interpreter of a process: which mapped file has `_PyRuntime`, and where that is in memory.

use std::collections::BTreeMap;

use cpython::{Memory as _, Python, Unreadable, Version, locate};
use nccl_library::elf::{Image, RuntimeAddr};

use crate::{
    memory::Memory,
    target::{
        LibraryId, MappedLibrary, Process,
        maps::{self, Mapping},
    },
};

/// The memory of a process, as the walk through an interpreter wants it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetMemory<'p>(Memory<'p>);

impl<'p> TargetMemory<'p> {
    pub(crate) fn new(process: &'p Process) -> Self {
        Self(Memory::new(process))
    }
}

impl cpython::Memory for TargetMemory<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.0.read(RuntimeAddr(address), into).map_err(|_| Unreadable(address))
    }
}

/// `_PyRuntime` in a file.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Bytes behind the file's first byte, as it is loaded.
    distance: u64,
    version: Option<Version>,
}

/// What is known of files that were read already: several processes map the same ones.
#[derive(Debug, Default)]
pub(crate) struct Runtimes {
    files: BTreeMap<LibraryId, Result<Option<Known>, String>>,
}

impl Runtimes {
    /// The interpreter of a process; `None` if it is no Python program.
    ///
    /// # Errors
    /// A sentence that says why an interpreter that seems to be there is not understood.
    pub(crate) fn find(&mut self, process: &Process) -> Result<Option<Python>, String> {
        let mappings =
            maps::read(process.pid()).map_err(|error| format!("its mappings cannot be read: {error}"))?;
        let memory = TargetMemory::new(process);
        let mut why_not = None;
        for mapping in candidates(process, &mappings) {
            let known = match self.of_file(process, mapping) {
                Ok(Some(known)) => known,
                Ok(None) => continue,
                Err(error) => {
                    why_not.get_or_insert(error);
                    continue;
                }
            };
            let name = mapping.path.file_name().unwrap_or_default().to_string_lossy();
            let version = known.version.or_else(|| Version::from_file_name(&name));
            match Python::at(&memory, mapping.start.0.wrapping_add(known.distance), version) {
                // A library that another one brought along may not be the one that runs.
                Ok(python) if is_initialised(&python, memory) => return Ok(Some(python)),
                Ok(_) => why_not.get_or_insert_with(|| cpython::Unknown::NotInitialised.to_string()),
                Err(unknown) => why_not.get_or_insert_with(|| unknown.to_string()),
            };
        }
        why_not.map_or(Ok(None), Err)
    }

    fn of_file(&mut self, process: &Process, mapping: &Mapping) -> Result<Option<Known>, String> {
        let file = MappedLibrary::open(process, mapping).map_err(|error| error.to_string())?;
        self.files.entry(file.id).or_insert_with(|| runtime_of(&file)).clone()
    }
}

fn runtime_of(file: &MappedLibrary) -> Result<Option<Known>, String> {
    let image = file.try_clone_file().map_err(|error| error.to_string())?;
    let image = Image::from_file_named(image, file.shown()).map_err(|error| error.to_string())?;
    let Some(found) = locate::runtime(&image).map_err(|error| error.to_string())? else { return Ok(None) };
    let Some(base) = image.base() else { return Ok(None) };
    Ok(Some(Known { distance: found.address.0.wrapping_sub(base.0), version: found.version }))
}

fn is_initialised(python: &Python, memory: TargetMemory<'_>) -> bool {
    let mut head = [0; 8];
    let at = python.runtime.wrapping_add(u64::from(python.offsets.runtime.interpreters_head));
    memory.read(at, &mut head).is_ok() && head != [0; 8]
}

/// Mappings of the first byte of files that may be an interpreter: libraries of its name, and the program itself.
fn candidates<'m>(process: &Process, mappings: &'m [Mapping]) -> Vec<&'m Mapping> {
    /// A process maps one, or none.
    const MAX: usize = 8;
    let name =
        |mapping: &Mapping| mapping.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let program = std::fs::read_link(process.proc_path().join("exe")).unwrap_or_default();
    let mut found: Vec<&Mapping> = Vec::new();
    let begins = |mapping: &&Mapping| mapping.inode != 0 && mapping.file_offset.0 == 0;
    for mapping in mappings.iter().filter(begins) {
        let is_new = found.iter().all(|other| (other.device, other.inode) != (mapping.device, mapping.inode));
        if is_new && (name(mapping).starts_with("libpython") || mapping.path == program) {
            found.push(mapping);
        }
    }
    found.sort_by_key(|mapping| !name(mapping).starts_with("libpython"));
    found.truncate(MAX);
    found
}
