//! The CPython of a process: which it is, and where.

use std::{collections::BTreeSet, os::unix::ffi::OsStrExt as _};

use cpython::{Python, ThreadState, Unknown, Walker, locate, pthread};
use nccl_library::elf::{Image, Machine};

use super::{reader::ProcessMemory, walk};
use crate::{
    memory::Memory,
    target::{MappedLibrary, Process, maps::Mapping},
    threads::Modules,
};
use ncclflow_common::PythonWalk;

/// Files of a process that may be its interpreter, at most.
const MAX_FILES: usize = 16;

/// Threads whose numbers prove how they are numbered.
const PROVING_THREADS: usize = 16;

/// Where the C library keeps a thread's number: as `cpython::pthread` says, glibc's and musl's.
const TID_PLACES: [u32; 3] = [0x2d0, 48, 0xd0];

/// An interpreter in a process.
#[derive(Clone, Copy, Debug)]
pub struct Interpreter {
    pub(super) python: Python,
    pub(super) walk: PythonWalk,
}

impl Interpreter {
    /// Finds the interpreter; `Ok(None)`: the process runs no Python. `depth`: frames that the kernel side is to
    /// walk.
    ///
    /// # Errors
    /// Why Python's stacks cannot be known, for people.
    pub fn find(process: &Process, depth: u8) -> Result<Option<Self>, String> {
        let memory = ProcessMemory(process);
        let mut modules = Modules::read(process).map_err(|error| format!("reading its mappings: {error}"))?;
        let executable = executable(process);
        let mut looked = BTreeSet::new();
        let candidates = modules.all().iter().filter(|mapping| {
            mapping.is_file_code() && (Some(mapping.inode) == executable || is_named_python(mapping))
        });
        let candidates: Vec<Mapping> = candidates.cloned().collect();
        let mut why = None;
        for mapping in candidates {
            if !looked.insert(mapping.inode) || looked.len() > MAX_FILES {
                continue;
            }
            let found = runtime_in(process, &mapping, &mut modules);
            match found {
                Ok(None) => {}
                Ok(Some((address, version, machine))) => {
                    let python = Python::at(&memory, address, version).map_err(|unknown| unknown.to_string())?;
                    return Self::proven(python, process, machine, depth).map(Some);
                }
                Err(error) => why = Some(error),
            }
        }
        why.map_or(Ok(None), Err)
    }

    /// Walks the interpreter's threads: layouts that are wrong end here.
    fn proven(python: Python, process: &Process, machine: Machine, depth: u8) -> Result<Self, String> {
        let memory = ProcessMemory(process);
        let threads = Walker::new(python, &memory).threads();
        let threads = threads.map_err(|unknown: Unknown| format!("its threads: {unknown}"))?;
        let tid_place = match python.offsets.thread.native_thread_id {
            Some(_) => None,
            None => Some(tid_place(process, machine, &threads).ok_or(
                "its C library is none that is known, and this Python does not say how the kernel numbers its threads",
            )?),
        };
        let walk = walk::of(&python, process, tid_place, depth)?;
        Ok(Self { python, walk })
    }

    /// For people: `3.12.1`.
    pub fn version(&self) -> String {
        self.python.offsets.version.to_string()
    }

    /// What the kernel side is told.
    pub fn walk(&self) -> &PythonWalk {
        &self.walk
    }
}

fn executable(process: &Process) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(process.proc_path().join("exe")).ok().map(|file| file.ino())
}

/// `libpython3.12.so.1.0`, `python3.12`.
fn is_named_python(mapping: &Mapping) -> bool {
    let name = mapping.path.file_name().map(|name| name.as_bytes()).unwrap_or_default();
    name.starts_with(b"libpython") || name.starts_with(b"python")
}

type Runtime = (u64, Option<cpython::Version>, Machine);

/// Where `_PyRuntime` of this file is in the process.
fn runtime_in(process: &Process, mapping: &Mapping, modules: &mut Modules) -> Result<Option<Runtime>, String> {
    let shown = || crate::target::printable(&mapping.path.to_string_lossy());
    let file = MappedLibrary::open(process, mapping).and_then(|file| file.try_clone_file());
    let file = file.map_err(|error| format!("`{}` cannot be opened: {error}", shown()))?;
    let image = Image::from_file(file).map_err(|error| format!("`{}`: {error}", shown()))?;
    let runtime = locate::runtime(&image).map_err(|error| format!("`{}`: {error}", shown()))?;
    let Some(runtime) = runtime else { return Ok(None) };
    let Some(module) = modules.module(Memory::new(process), mapping.start.0) else {
        return Err(format!("where `{}` begins in memory is not known", shown()));
    };
    let address = module.bias.wrapping_add(runtime.address.0);
    Ok(Some((address, runtime.version, image.machine())))
}

/// Where in the C library's description of a thread its number is: the only place at which every thread that Python
/// knows has the number of a thread of the process.
fn tid_place(process: &Process, machine: Machine, threads: &[ThreadState]) -> Option<u32> {
    let memory = ProcessMemory(process);
    let own = own_tids(process);
    let fits = |place: &u32| {
        let number = |thread: &ThreadState| {
            let mut bytes = [0; 4];
            let at = thread.pthread.checked_add(u64::from(*place))?;
            cpython::Memory::read(&memory, at, &mut bytes).ok()?;
            let number = u32::from_le_bytes(bytes);
            // And the library's own marks are there.
            pthread::thread_numbers(&memory, machine, thread.pthread).contains(&number).then_some(number)
        };
        let proving = || threads.iter().take(PROVING_THREADS);
        let numbers: BTreeSet<u32> = proving().filter_map(number).collect();
        !numbers.is_empty() && numbers.len() == proving().count() && numbers.is_subset(&own)
    };
    TID_PLACES.into_iter().find(fits)
}

/// The numbers of the process's threads as it sees them.
fn own_tids(process: &Process) -> BTreeSet<u32> {
    let Ok(tasks) = std::fs::read_dir(process.proc_path().join("task")) else { return BTreeSet::new() };
    let own = tasks.flatten().take(cpython::MAX_THREADS).filter_map(|task| {
        let status = crate::target::read_text(task.path().join("status")).ok()?;
        crate::target::status_field(&status, "NSpid")?.split_whitespace().last()?.parse().ok()
    });
    own.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_python_has_none() {
        let process = Process::open(std::process::id()).unwrap();
        assert!(Interpreter::find(&process, 24).unwrap().is_none());
    }

    #[test]
    fn our_threads_are_numbered() {
        let process = Process::open(std::process::id()).unwrap();
        assert!(own_tids(&process).contains(&process.own_pid()));
    }
}
