//! The stacks of a process's Python threads.

use std::collections::BTreeMap;

use cpython::{Python, StackEnd, ThreadState, Unknown, Walker, pthread};
use nccl_library::elf::Machine;

use super::report::is_of_torch;
use crate::{PythonReport, PythonThread, PythonVariable};
use inspect::{
    process::Process,
    python::{Pages, Runtimes},
};

/// Maximum number of threads of one process that are given with their stacks.
const MAX_THREADS: usize = 256;

/// Finds the stacks of the Python threads of a process; `None` if it is no Python program. The main thread is
/// always given, and so are those in torch's collectives and waits; others if they are wanted.
/// `is_variable` tells which variables of the innermost frames of the main thread, and of those in torch, are.
pub(crate) fn look(
    process: &Process,
    is_wanted: impl Fn(u32) -> bool,
    is_variable: fn(&str) -> bool,
    runtimes: &Runtimes,
) -> Option<PythonReport> {
    let python = match runtimes.find(process) {
        Ok(found) => found?.python,
        Err(why) => return Some(PythonReport { unknown: Some(why), ..PythonReport::default() }),
    };
    let version = Some(python.offsets.version.to_string());
    Some(match threads(process, python, is_wanted, is_variable) {
        Ok(threads) => PythonReport { version, threads, unknown: None },
        Err(unknown) => PythonReport { version, unknown: Some(unknown.to_string()), threads: Vec::new() },
    })
}

fn threads(
    process: &Process,
    python: Python,
    is_wanted: impl Fn(u32) -> bool,
    is_variable: fn(&str) -> bool,
) -> Result<Vec<PythonThread>, Unknown> {
    let memory = Pages::new(process);
    let mut walker = Walker::new(python, &memory);
    let numbers = thread_numbers(process);
    let mut found: BTreeMap<u32, ThreadState> = BTreeMap::new();
    for state in walker.threads()? {
        let by_library = || {
            let numbers = pthread::thread_numbers(&memory, MACHINE, state.pthread);
            numbers.into_iter().map(|(_, number)| number).collect()
        };
        let by_python = |number| u32::try_from(number).into_iter().collect();
        let likely: Vec<u32> = state.native_id.map_or_else(by_library, by_python);
        let tid = likely.iter().find_map(|own| numbers.get(own));
        if let Some(tid) = tid {
            found.insert(*tid, state);
        }
    }
    let main = process.pid();
    let mut threads = Vec::new();
    for (tid, state) in &found {
        if threads.len() >= MAX_THREADS && *tid != main {
            continue;
        }
        let thread = thread(&mut walker, *tid, *state, *tid == main, is_variable);
        let innermost = thread.frames.first();
        let is_in_torch = innermost.is_some_and(is_of_torch);
        if thread.is_main || is_wanted(*tid) || is_in_torch {
            threads.push(thread);
        }
    }
    if !found.contains_key(&main) {
        let unknown = Some("its Python does not know this thread".to_owned());
        threads.push(PythonThread { tid: main, is_main: true, unknown, ..PythonThread::default() });
    }
    threads.sort_by_key(|thread| (!thread.is_main, thread.tid));
    Ok(threads)
}

const MACHINE: Machine = if cfg!(target_arch = "aarch64") { Machine::Aarch64 } else { Machine::X86_64 };

fn thread(
    walker: &mut Walker<'_>,
    tid: u32,
    state: ThreadState,
    is_main: bool,
    is_variable: fn(&str) -> bool,
) -> PythonThread {
    /// Maximum number of readings until frames and names are of one moment.
    const MAX_READINGS: usize = 3;
    let mut stack = walker.stack(state);
    let mut frames;
    let mut readings = 0;
    loop {
        frames = Vec::new();
        let mut unknown = None;
        for frame in &stack.frames {
            match walker.frame(*frame) {
                Ok(frame) => frames.push(inspect::python::shown(frame)),
                Err(why) => {
                    unknown = Some(why);
                    break;
                }
            }
        }
        // A function that returned meanwhile may have taken its code object with it.
        let again = walker.stack(state);
        readings += 1;
        if again == stack || readings >= MAX_READINGS {
            let moving = stack.moving || again != stack;
            let unknown = match (unknown, stack.end) {
                (Some(why), _) | (None, StackEnd::Unknown(why)) => Some(why.to_string()),
                (None, StackEnd::Outermost | StackEnd::Limit) => None,
            };
            let cut = again.end == StackEnd::Limit;
            let has_variables = is_main || frames.first().is_some_and(is_of_torch);
            let innermost = stack.frames.first().filter(|_| has_variables && !moving);
            let read = innermost.map(|frame| walker.innermost_locals(state, *frame, is_variable));
            let variables = read.and_then(|read| read.ok().flatten()).unwrap_or_default();
            let variables = variables.into_iter().map(PythonVariable::of).collect();
            return PythonThread { tid, is_main, moving, cut, unknown, frames, variables };
        }
        walker.forget();
        stack = again;
    }
}

/// Returns the kernel's numbers of the process's threads, by the process's own numbers: they differ in a
/// container.
fn thread_numbers(process: &Process) -> BTreeMap<u32, u32> {
    let tids = process.thread_ids().take(cpython::MAX_THREADS);
    if process.own_pid() == process.pid() {
        return tids.map(|tid| (tid, tid)).collect();
    }
    tids.filter_map(|tid| Some((process.own_thread_id(tid)?, tid))).collect()
}
