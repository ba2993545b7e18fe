//! Processes that did not answer. They are not asked again before the child has come back that asked, and
//! then after growing pauses. If a user has many of them, none of the user's processes is asked, so that the
//! cost stays with that user.

use std::time::Instant;

use crate::{
    proc_text::real_uid,
    process::{is_gone, read_text, running::started, try_started},
    unresponsive::{Returns, Silent},
};

/// Processes of one user that may be silent; then no process of the user is asked.
const MAX_OF_USER: usize = 16;

/// A process by its number and start, so that a later process of the same number is another.
type Known = (u32, Option<u64>);

/// Silent processes, each with its real user, whom a process without rights cannot change. `None`: the
/// process had ended, or has no such line.
#[derive(Debug, Default)]
pub(super) struct SilentProcesses {
    silent: Silent<Known, Option<u32>, MAX_OF_USER>,
    returns: Returns<Known>,
}

impl SilentProcesses {
    /// Adds a process that did not answer. `left`: the child that still waits for it.
    pub(super) fn add(&mut self, pid: u32, left: Option<u32>, now: Instant) {
        self.forget_ended();
        let known = (pid, started(pid));
        self.returns.left(known, left, now);
        self.silent.add(known, user_of(pid));
    }

    /// Tells whether a process is not to be asked now.
    pub(super) fn has(&mut self, pid: u32, now: Instant) -> bool {
        let Self { silent, returns } = self;
        silent.keep_only(|(known, _)| returns.are_awaited(known, now));
        let is_it = |start: Option<u64>| match try_started(pid) {
            Ok(now) => start == now,
            // An error other than that it is gone does not show whether it is another process.
            Err(error) => start.is_none() || !is_gone(&error),
        };
        if self.silent.iter().any(|((known, start), _)| *known == pid && is_it(*start)) {
            return true;
        }
        if self.silent.iter().count() < MAX_OF_USER {
            return false;
        }
        let user = user_of(pid);
        if user.is_none() || !self.silent.has_all_of(&user) {
            return false;
        }
        // Processes that have ended do not count.
        self.forget_ended();
        self.silent.has_all_of(&user)
    }

    fn forget_ended(&mut self) {
        self.silent.keep_only(|((pid, start), _)| match try_started(*pid) {
            Ok(now) => start.is_some() && *start == now,
            Err(error) => !is_gone(&error),
        });
    }
}

/// Returns the real user of a process.
fn user_of(pid: u32) -> Option<u32> {
    real_uid(&read_text(format!("/proc/{pid}/status")).ok()?)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeping() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    #[test]
    fn one_that_was_silent_is_not_asked_and_many_of_a_user_stand_for_all_until_they_end() {
        let (mut silent, now) = (SilentProcesses::default(), Instant::now());
        assert!(!silent.has(std::process::id(), now));
        let mut children: Vec<Child> = (0..MAX_OF_USER).map(|_| sleeping()).collect();
        for (already, child) in children.iter().enumerate() {
            assert!(!silent.has(child.id(), now), "{already} were silent");
            silent.add(child.id(), None, now);
            assert!(silent.has(child.id(), now));
        }
        let (mut other, init) = (sleeping(), 1);
        assert!(silent.has(other.id(), now), "it is of the same user");
        let is_root = user_of(init) == user_of(std::process::id());
        assert_eq!(silent.has(init, now), is_root, "another user's is asked");
        let mut first = children.remove(0);
        for child in [&mut first, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let mut next = sleeping();
        assert!(!silent.has(next.id(), now), "fewer are left");
        for child in children.iter_mut().chain([&mut next]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    #[test]
    fn after_a_hundred_thousand_that_ended_none_is_remembered() {
        let (mut silent, now) = (SilentProcesses::default(), Instant::now());
        for pid in 0..100_000 {
            // No process has such a number.
            silent.add(u32::MAX - pid, None, now);
        }
        assert!(silent.silent.iter().count() <= 1);
    }
}
