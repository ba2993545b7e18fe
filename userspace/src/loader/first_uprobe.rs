//! The first uprobe of a while has to wait, the next ones do not: these wait for them.
//!
//! Whoever registers a uprobe takes the writing side of a lock whose readers are forks (`dup_mmap_sem` in kernel/events/uprobes.c, a
//! per-CPU rwsem since 3.8). When nobody has done so for a while, that waits for an RCU grace period, 8 to 25 ms on the hosts that were
//! measured; after that, for as long again, it does not. So uprobes of no use are registered while the program has other things to do.

use std::{
    fs,
    os::fd::OwnedFd,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use crate::perf_event::{self, Attributes};

/// Where the kernel says which type of event its uprobes are.
const TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";

/// How long after one the next is registered: less than a grace period.
const AGAIN: Duration = Duration::from_millis(6);

/// Most that are. To take one out again has a wait of its own.
const MOST: usize = 4;

/// Keeps the lock at hand until the first probe that matters is attached.
#[derive(Debug)]
pub struct FirstUprobe {
    _until_dropped: Sender<()>,
}

/// A function that nobody calls: a breakpoint is put on it.
#[inline(never)]
extern "C" fn never_called() {
    std::hint::black_box(());
}

impl FirstUprobe {
    /// Begins, in a thread of its own. Where the kernel refuses, nothing is done: then so it will do with the probes that matter, and
    /// says why.
    pub fn wait_for() -> Self {
        let (until_dropped, dropped) = channel();
        thread::spawn(move || {
            let mut uprobes = Vec::new();
            while uprobes.len() < MOST
                && let Some(uprobe) = register()
            {
                uprobes.push(uprobe);
                if dropped.recv_timeout(AGAIN) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
            let _disconnected = dropped.recv();
        });
        Self { _until_dropped: until_dropped }
    }
}

/// Registers a uprobe on a function of this process that it never calls.
fn register() -> Option<OwnedFd> {
    let kind = fs::read_to_string(TYPE).ok()?.trim().parse().ok()?;
    let place = super::trial::file_offset(never_called as *const () as usize).ok()?;
    let file = c"/proc/self/exe";
    let attributes =
        Attributes { kind, config1: file.as_ptr() as u64, config2: place, ..Attributes::default() };
    // SAFETY: `config1` of a uprobe is the address of its file's name, which ends in a zero byte and lives on; `config2` is a number.
    unsafe { perf_event::open(&attributes, 0) }.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_is_not_called_keeps_working() {
        // Without the right to do so there is none, and that is no error.
        let registered = register();
        never_called();
        drop(registered);
        never_called();
    }
}
