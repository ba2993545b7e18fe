//! Roles of a process's threads: those that may launch, those that have called NCCL, and those of NCCL that
//! move ops in flight.
//!
//! A thread that gives itself no name keeps that of the thread that made it, and NCCL's give themselves names
//! only with `NCCL_SET_THREAD_NAME=1` (src/debug.cc). So NCCL's are known by the handles that it keeps of
//! them, and of several threads of one name only the first is what the name says.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use inspect::{
    memory::Memory,
    process::{Process, printable, read_text},
};
use nccl_library::elf::RuntimeAddr;

/// Maximum number of threads of a process that are looked at.
pub(crate) const MAX_THREADS: usize = 512;
/// Prefix of the names of PyTorch's threads for the backward pass (torch/csrc/autograd/engine.cpp).
const BACKWARD: &str = "pt_autograd_";
/// Prefix of the names of the threads of torch that look after communicators: they ask NCCL, abort, and launch
/// nothing (ProcessGroupNCCL.cpp: `pt_nccl_watchdg`, `pt_nccl_heartbt`).
const CARETAKERS: &str = "pt_nccl_";
/// Bytes at a `pthread_t` among which the thread's number is: glibc has it at 720 on x86-64 and at 208 on
/// arm64 (nptl/descr.h, `struct pthread`; libthread_db reads it there).
const DESCRIPTOR: u64 = 1024;

/// Names of the threads of a process that were met, in the order in which the kernel lists them: the oldest
/// first.
#[derive(Debug, Default)]
pub(crate) struct Launching {
    names: BTreeSet<String>,
}

impl Launching {
    /// Tells whether the next thread may launch: the first of the process, or one of PyTorch's for the
    /// backward pass.
    pub(crate) fn has(&mut self, is_first: bool, name: &str) -> bool {
        is_first || (name.starts_with(BACKWARD) && self.names.insert(name.to_owned()))
    }
}

/// Threads of a process that are known by what they have done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    /// Those that move ops in flight.
    pub(crate) proxies: BTreeSet<u32>,
    /// Those that have called NCCL, beside the first.
    pub(crate) callers: BTreeSet<u32>,
}

impl Roles {
    /// Looks at a process. `handles` are those of its threads that move ops, `callers` threads that have called
    /// NCCL.
    pub(crate) fn of(process: &Process, handles: &BTreeSet<u64>, callers: &BTreeSet<u32>) -> Self {
        let proxies = of_handles(process, handles);
        let is_caller =
            |tid: &&u32| !proxies.contains(tid) && !name_of(process, **tid).starts_with(CARETAKERS);
        let callers = callers.iter().filter(is_caller).copied().collect();
        Self { proxies, callers }
    }

    /// Returns those that have called NCCL, with their names, the first of them if there are very many.
    pub(crate) fn shown_callers(&self, process: &Process) -> Vec<Caller> {
        const MAX_CALLERS: usize = 64;
        let caller = |tid: &u32| Caller { tid: *tid, name: name_of(process, *tid) };
        self.callers.iter().take(MAX_CALLERS).map(caller).collect()
    }
}

/// A thread that has called NCCL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// TID in the PID namespace of this program.
    pub tid: u32,
    pub name: String,
}

impl Caller {
    /// Tells whether it is one of PyTorch's for the backward pass, which runs no code of the user's.
    pub(crate) fn is_backward(&self) -> bool {
        self.name.starts_with(BACKWARD)
    }
}

/// Returns the name of a thread, as far as it can be read.
pub(crate) fn name_of(process: &Process, tid: u32) -> String {
    let name = read_text(process.task_path(tid).join("comm")).unwrap_or_default();
    printable(name.trim_end())
}

/// Returns the threads of a process that these handles (`pthread_t`) stand for. Handles without a thread are
/// left out.
pub(crate) fn of_handles(process: &Process, handles: &BTreeSet<u64>) -> BTreeSet<u32> {
    let memory = Memory::new(process);
    let mut threads = None;
    let thread_of = |handle: &u64| {
        let descriptor = memory.bytes(RuntimeAddr(*handle), DESCRIPTOR).ok()?;
        let threads: &Vec<(u32, u32)> = threads.get_or_insert_with(|| {
            let tids = process.thread_ids().take(MAX_THREADS);
            tids.filter_map(|tid| Some((process.own_thread_id(tid)?, tid))).collect()
        });
        descriptor.as_chunks().0.iter().find_map(|word| {
            let number = u32::from_ne_bytes(*word);
            threads.iter().find(|(own, _)| *own == number).map(|(_, tid)| *tid)
        })
    };
    handles.iter().filter(|handle| **handle != 0).take(MAX_THREADS).filter_map(thread_of).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{os::unix::thread::JoinHandleExt as _, sync::mpsc, thread, time::Duration};

    use inspect::process::run_times;
    use test_support::eventually;

    use super::*;

    /// Runs `test` beside a thread of this process, with its handle and number.
    pub(crate) fn beside_a_thread(work: impl Fn() + Send + 'static, test: impl FnOnce(&Process, u64, u32)) {
        let (tell, told) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            while ends.try_recv() == Err(mpsc::TryRecvError::Empty) {
                work();
            }
        });
        let (own, tid) = (Process::open(std::process::id()).unwrap(), told.recv().unwrap());
        // The kernel counts its time from the first tick on.
        let has_run = || {
            let schedstat = read_text(own.task_path(tid).join("schedstat")).unwrap();
            run_times(&schedstat).is_some_and(|[ran, _]| ran > 0)
        };
        assert!(eventually(Duration::from_secs(30), has_run));
        test(&own, thread.as_pthread_t() as u64, tid);
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn a_thread_is_known_by_its_handle() {
        beside_a_thread(thread::yield_now, |own, handle, tid| {
            assert_eq!(of_handles(own, &BTreeSet::from([handle])), BTreeSet::from([tid]));
            assert_eq!(of_handles(own, &BTreeSet::from([0, 8, u64::MAX])), BTreeSet::new());
        });
    }

    #[test]
    fn a_thread_that_inherited_a_name_does_not_launch() {
        let mut launching = Launching::default();
        let is_it: Vec<bool> = [
            (true, "python3"),
            (false, "python3"),
            (false, "pt_autograd_0"),
            (false, "pt_autograd_1"),
            (false, "pt_autograd_0"),
        ]
        .map(|(is_first, name)| launching.has(is_first, name))
        .to_vec();
        assert_eq!(is_it, [true, false, true, true, false]);
    }
}
