//! Activity of the threads of a running process, found out without stopping them.
//!
//! `/proc` has the stack pointer and the program counter of a thread that sleeps in the kernel ([`task`]).
//! The kernel's performance events sample a thread that runs, for some milliseconds ([`sample`]). From there
//! the stack is unwound by the call frame information in the target's memory ([`unwind`]), and its frames are
//! named from the files' symbol tables ([`names`]). Stacks that the kernel side has copied at a probe's hit
//! are unwound in the same way, out of the copy ([`at_hit`]). [`waits_in`] tells which functions of some
//! libraries a thread waits in, and [`callers`] which threads have ever called into one.
//!
//! Memory, files and tables belong to a tenant. Every walk is bounded, and ends at anything invalid.

mod at_hit;
mod callers;
mod modules;
mod names;
mod sample;
mod task;
mod unwind;
mod waits_in;

use std::{collections::BTreeSet, thread, time::Duration};

use serde::{Deserialize, Serialize};

pub use at_hit::{HitStack, NativeFrame, Unwinder, Unwound};
pub use callers::callers;
pub use names::{Names, NativeNames};
pub use sample::Sampler;
pub use waits_in::waits_in;

use self::{
    modules::Modules,
    sample::Samples,
    task::{Position, Task},
    unwind::{Frame, MAX_GUESSES, Stack},
};
use crate::{
    memory::Memory,
    process::{Process, printable},
};

/// Maximum number of threads of one process that are looked at; a training process has some hundreds.
const MAX_THREADS: usize = 4096;
/// Maximum number of running threads that are sampled at once.
const MAX_SAMPLED: usize = 64;
/// Maximum number of looks at a thread that runs and was not sampled, until it sleeps.
const NAP_LOOKS: usize = 50;
/// Time between two of these looks.
const NAP: Duration = Duration::from_micros(200);
/// Time for which threads are sampled.
const SAMPLING: Duration = Duration::from_millis(25);

/// A thread inside NCCL, or one that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Thread {
    /// TID in the PID namespace of this program.
    pub tid: u32,
    /// The kernel's name of the thread; NCCL names its own threads.
    pub name: String,
    /// The thread runs or waits for a CPU. Otherwise it sleeps, in the kernel function `wchan`.
    pub is_running: bool,
    pub wchan: Option<String>,
    /// The innermost function of NCCL that the thread is in.
    pub nccl_function: Option<String>,
    /// The call of NCCL's API that led there: the outermost frame of one.
    pub nccl_api: Option<String>,
    /// The thread was outside NCCL in other samples of the same moment: it comes and goes, as one that
    /// launches in a loop, and does not wait inside.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passes: bool,
    /// Call stack, innermost frame first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<NamedFrame>,
    /// Where the stack stood.
    #[serde(skip)]
    pub top: Option<StackTop>,
    /// Reason why the stack is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamedFrame {
    pub function: Option<String>,
    /// File name of the library or program; null for code of no file.
    pub module: Option<String>,
    /// Address in that file's own terms, or in memory where there is no file.
    pub address: u64,
    /// This frame and the following ones were found by a likely return address, because the call frame
    /// information ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inferred: bool,
}

/// Innermost end of a thread's stack at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackTop {
    /// The stack pointer.
    pub pointer: u64,
    /// The other registers, as far as they are known: not those of a thread that sleeps.
    pub registers: Vec<u64>,
}

/// Looks at the threads of a process, and returns those that are inside NCCL. `nccl` has the inodes of its
/// NCCL libraries. With `stacks_of` threads have frames, and the first thread and these are returned even if
/// they are not inside NCCL.
pub fn look(
    process: &Process,
    nccl: &BTreeSet<u64>,
    stacks_of: Option<&BTreeSet<u32>>,
    names: &Names,
    sampler: &Sampler,
) -> Vec<Thread> {
    let Ok(modules) = Modules::read(process) else { return Vec::new() };
    let tasks = task::list(process, MAX_THREADS);
    let running = tasks.iter().filter(|task| task.position == Position::Running);
    let running: Vec<u32> = running.map(|task| task.tid).take(MAX_SAMPLED).collect();
    let sleeps = |tid| matches!(task::position_of(process, tid), Position::Blocked { .. });
    let mut samples = Samples::take(sampler, &running, SAMPLING, sleeps);
    let mut looker = Looker { memory: Memory::new(process), process, modules, nccl, stacks_of, names };
    tasks.iter().filter_map(|task| looker.thread(task, &mut samples)).collect()
}

struct Looker<'a> {
    memory: Memory<'a>,
    process: &'a Process,
    modules: Modules,
    nccl: &'a BTreeSet<u64>,
    stacks_of: Option<&'a BTreeSet<u32>>,
    names: &'a Names,
}

impl Looker<'_> {
    fn thread(&mut self, task: &Task, samples: &mut Samples) -> Option<Thread> {
        let is_wanted =
            self.stacks_of.is_some_and(|wanted| task.tid == self.process.pid() || wanted.contains(&task.tid));
        let mut report = Thread {
            tid: task.tid,
            name: task.name.clone(),
            is_running: task.position == Position::Running,
            wchan: task.wchan.clone(),
            ..Thread::default()
        };
        let stacks: Vec<Stack> = match task.position {
            Position::Blocked { stack_pointer, pc } => vec![Stack::at(pc, stack_pointer)],
            Position::Running => {
                let sampled = samples.of(task.tid);
                if sampled.is_empty() { self.stack_of_one_that_naps(task.tid) } else { sampled }
            }
            Position::Unknown => Vec::new(),
        };
        if stacks.is_empty() {
            report.unknown = Some(match task.position {
                Position::Running => samples.why_not(task.tid),
                _ => "the kernel does not say where it is".to_owned(),
            });
            // NCCL gives names to its own threads alone.
            return (is_wanted || task.name.starts_with("NCCL")).then_some(report);
        }
        // Of several samples, the first one inside NCCL.
        let (mut chosen, mut is_inside) = (Vec::new(), false);
        let may_be_inside: Vec<bool> = stacks.iter().map(|stack| self.may_be_inside(stack)).collect();
        if !is_wanted && !may_be_inside.contains(&true) {
            return None;
        }
        for (stack, may_be_inside) in stacks.iter().zip(may_be_inside) {
            // The copy begins at the innermost frame, and reaches past all of NCCL's.
            report.passes |= !may_be_inside && !stack.copy.is_empty();
            let (mut frames, is_whole) = unwind::unwind(self.memory, &mut self.modules, stack, MAX_GUESSES);
            if stack.copy.is_empty() && !self.is_still_at(task.tid, stack) {
                // The thread ran while its stack was read.
                for frame in &mut frames {
                    frame.inferred = true;
                }
            }
            let inside = frames.iter().any(|frame| self.is_nccl(frame));
            report.passes |= !inside && is_whole && frames.iter().all(|frame| !frame.inferred);
            if (inside && !is_inside) || (is_wanted && chosen.is_empty()) {
                chosen = frames;
                report.top = stack.top();
            }
            is_inside |= inside;
        }
        if chosen.is_empty() || !(is_inside || is_wanted) {
            return None;
        }
        report.passes &= is_inside;
        for frame in &chosen {
            let (named, is_api) = self.name(frame);
            if self.is_nccl(frame) {
                report.nccl_function = report.nccl_function.or_else(|| named.function.clone());
                // The outermost call stays.
                report.nccl_api = named.function.clone().filter(|_| is_api).or(report.nccl_api);
            }
            if self.stacks_of.is_some() {
                report.frames.push(named);
            }
        }
        Some(report)
    }

    /// Looks at a thread until it sleeps. Threads that wait by short sleeps, as NCCL's do, run too little to
    /// be sampled, but sooner or later a look finds them asleep.
    fn stack_of_one_that_naps(&self, tid: u32) -> Vec<Stack> {
        for _ in 0..NAP_LOOKS {
            if let Position::Blocked { stack_pointer, pc } = task::position_of(self.process, tid) {
                return vec![Stack::at(pc, stack_pointer)];
            }
            thread::sleep(NAP);
        }
        Vec::new()
    }

    fn is_still_at(&self, tid: u32, stack: &Stack) -> bool {
        match task::position_of(self.process, tid) {
            Position::Blocked { stack_pointer, pc } => {
                (pc, Some(stack_pointer)) == (stack.pc, stack.stack_pointer())
            }
            _ => false,
        }
    }

    /// Tells whether the stack holds an address of NCCL's code at all: most threads need not be unwound.
    fn may_be_inside(&self, stack: &Stack) -> bool {
        let ranges: Vec<(u64, u64)> = self.modules.code_of(self.nccl);
        let is_inside = |word: u64| ranges.iter().any(|(start, end)| (*start..*end).contains(&word));
        is_inside(stack.pc) || stack.words(self.memory, &self.modules).any(is_inside)
    }

    fn is_nccl(&self, frame: &Frame) -> bool {
        self.modules.inode_at(frame.pc).is_some_and(|inode| self.nccl.contains(&inode))
    }

    /// Returns the frame with its name, and whether that is a function of NCCL's API.
    fn name(&mut self, frame: &Frame) -> (NamedFrame, bool) {
        let inferred = frame.inferred;
        let Some((mapping, address)) = self.modules.locate(self.memory, frame.lookup()) else {
            return (NamedFrame { address: frame.pc, inferred, ..NamedFrame::default() }, false);
        };
        let module = mapping.path.file_name().map(|name| printable(&name.to_string_lossy()));
        let is_nccl = self.nccl.contains(&mapping.inode);
        let name = self.names.at(self.process, mapping, address, is_nccl);
        let (function, is_api) = name.map_or((None, false), |(name, is_api)| (Some(name), is_api));
        (NamedFrame { function, module, address, inferred }, is_api)
    }
}

#[cfg(test)]
mod tests;
