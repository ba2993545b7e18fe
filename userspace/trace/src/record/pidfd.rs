//! Followed processes, and how their ends are noticed. Each held process takes a descriptor, of which there
//! are few: beyond a tenant's share, ends are noticed later.

use std::os::fd::BorrowedFd;

use flow::quota::Limits;

use super::own_limits::descriptors;
use inspect::process::{Process, is_gone, try_started};

/// Returns how many processes may be held, in all and of one tenant: half of the descriptors, as the rest is
/// for files, links and sockets.
pub(super) fn held_limits() -> Limits {
    Limits::three_quarters_for_one(descriptors() / 2)
}

/// A process that is followed.
#[derive(Debug)]
pub(super) enum HeldProcess {
    /// A process held by a descriptor, which is readable at its end.
    Held(Process),
    /// A number alone; the process's end is checked at intervals.
    Known { pid: u32, started: Option<u64> },
}

impl HeldProcess {
    pub(super) fn new(process: Process, is_held: bool) -> Self {
        if is_held {
            return Self::Held(process);
        }
        Self::Known { pid: process.pid(), started: process.started() }
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(self, Self::Held(_))
    }

    /// Returns a descriptor that is readable once the process has ended.
    pub(super) fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Held(process) => Some(process.exit_fd()),
            Self::Known { .. } => None,
        }
    }

    /// Tells whether the process has ended. `asks`: also check a process that is not held.
    pub(super) fn has_exited(&self, asks: bool) -> bool {
        match self {
            Self::Held(process) => process.has_exited(),
            Self::Known { pid, started: begun } => asks && has_ended(*pid, *begun),
        }
    }
}

/// Tells whether the number is free or another process's. A process of which nothing can be read, for want of
/// descriptors for instance, has not ended.
fn has_ended(pid: u32, begun: Option<u64>) -> bool {
    match try_started(pid) {
        Ok(now) => begun.is_some() && now != begun,
        Err(error) => is_gone(&error),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_end_of_one_that_is_not_held_is_seen_when_it_is_asked_for() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = HeldProcess::new(Process::open(child.id()).unwrap(), false);
        assert!(!process.is_held() && process.exit_fd().is_none() && !process.has_exited(true));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.has_exited(true) && !process.has_exited(false));
    }
}
