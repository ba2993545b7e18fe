//! Roles of a process's threads: those that may launch, and those of NCCL that move ops in flight.
//!
//! A thread that gives itself no name keeps that of the thread that made it, and NCCL's give themselves names
//! only with `NCCL_SET_THREAD_NAME=1` (src/debug.cc). So NCCL's are known by the handles that it keeps of
//! them, and of several threads of one name only the first is what the name says.

use std::collections::BTreeSet;

use inspect::{memory::Memory, process::Process};
use nccl_library::elf::RuntimeAddr;

/// Maximum number of threads of a process that are looked at.
pub(crate) const MAX_THREADS: usize = 512;
/// Prefix of the names of PyTorch's threads for the backward pass (torch/csrc/autograd/engine.cpp).
const BACKWARD: &str = "pt_autograd_";
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
    use std::{os::unix::thread::JoinHandleExt as _, sync::mpsc, thread};

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
