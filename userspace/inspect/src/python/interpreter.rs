//! CPython of a process: its version and its place in memory.

use std::collections::BTreeSet;

use cpython::{Python, ThreadState, Walker, pthread};
use nccl_library::elf::Machine;

use super::{
    find::{Runtimes, TargetMemory},
    walk,
};
use crate::process::Process;
use ncclflow_common::{NO_OFFSET, PythonWalk};

/// Maximum number of threads that are looked at to prove where the C library keeps their numbers.
const PROVING_THREADS: usize = 16;

/// An interpreter in a process.
#[derive(Clone, Copy, Debug)]
pub struct Interpreter {
    pub python: Python,
    pub walk: PythonWalk,
}

impl Interpreter {
    /// Finds the interpreter; `Ok(None)`: the process runs no Python. `depth` is the number of frames that
    /// the kernel side is to walk.
    ///
    /// # Errors
    /// A sentence for people on why Python's stacks cannot be known.
    pub fn find(process: &Process, runtimes: &Runtimes, depth: u8) -> Result<Option<Self>, String> {
        let Some(found) = runtimes.find(process)? else { return Ok(None) };
        let python = found.python;
        let memory = TargetMemory::new(process);
        // This fails if the layouts are wrong.
        let threads = Walker::new(python, &memory).threads().map_err(|unknown| unknown.to_string())?;
        let tid_place = match python.offsets.thread.native_thread_id {
            Some(_) => None,
            None => Some(tid_place(process, &threads).ok_or(
                "its C library is none that is known, and this Python does not say how the kernel numbers its threads",
            )?),
        };
        let mut walk = walk::of(&python, process, tid_place, depth)?;
        if walk.code_name != NO_OFFSET
            && let Some(statics) = &found.statics
            && let Some(interned) = cpython::interned(&python.offsets, &memory, statics)
        {
            walk::spare_names(&mut walk, interned);
        }
        Ok(Some(Self { python, walk }))
    }

    /// Version for people: `3.12.1`.
    pub fn version(&self) -> String {
        self.python.offsets.version.to_string()
    }
}

/// Finds the offset of a thread's number in the C library's description of a thread: at no other has every
/// thread that Python knows the number of a thread of the process.
fn tid_place(process: &Process, threads: &[ThreadState]) -> Option<u32> {
    const MACHINE: Machine = if cfg!(target_arch = "aarch64") { Machine::Aarch64 } else { Machine::X86_64 };
    let memory = TargetMemory::new(process);
    let own = own_tids(process);
    let fits = |place: &u32| {
        // The library's own marks must be there, too.
        let number = |thread: &ThreadState| {
            let numbers = pthread::thread_numbers(&memory, MACHINE, thread.pthread);
            numbers.into_iter().find(|(at, _)| at == place).map(|(_, number)| number)
        };
        let numbers: Option<BTreeSet<u32>> = threads.iter().take(PROVING_THREADS).map(number).collect();
        numbers.is_some_and(|numbers| !numbers.is_empty() && numbers.is_subset(&own))
    };
    pthread::PLACES.into_iter().find(fits)
}

/// Returns the numbers of the process's threads as the process itself sees them.
fn own_tids(process: &Process) -> BTreeSet<u32> {
    let tids = process.thread_ids().take(cpython::MAX_THREADS);
    tids.filter_map(|tid| process.own_thread_id(tid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_python_has_none() {
        let process = Process::open(std::process::id()).unwrap();
        assert!(Interpreter::find(&process, &Runtimes::default(), 24).unwrap().is_none());
    }

    #[test]
    fn our_threads_are_numbered() {
        let process = Process::open(std::process::id()).unwrap();
        assert!(own_tids(&process).contains(&process.own_pid()));
    }
}
