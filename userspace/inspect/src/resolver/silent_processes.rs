//! Processes that did not answer and are not asked again. If a user has many of them, none of the user's
//! processes is asked, so that the cost stays with that user.

use crate::{
    process::{is_gone, read_text, running::started, try_started},
    proc_text::real_uid,
    unresponsive::Silent,
};

/// Processes of one user that may be silent; then no process of the user is asked.
const MAX_OF_USER: usize = 16;

/// A process by its number and start, so that a later process of the same number is another.
type Known = (u32, Option<u64>);

/// Silent processes, each with its real user, whom a process without rights cannot change. `None`: the
/// process had ended, or has no such line.
#[derive(Debug, Default)]
pub(super) struct SilentProcesses(Silent<Known, Option<u32>, MAX_OF_USER>);

impl SilentProcesses {
    /// Adds a process that did not answer.
    pub(super) fn add(&mut self, pid: u32) {
        self.forget_ended();
        self.0.add((pid, started(pid)), user_of(pid));
    }

    /// Tells whether a process is not to be asked.
    pub(super) fn has(&mut self, pid: u32) -> bool {
        let is_it = |start: Option<u64>| match try_started(pid) {
            Ok(now) => start == now,
            // An error other than that it is gone does not show whether it is another process.
            Err(error) => start.is_none() || !is_gone(&error),
        };
        if self.0.iter().any(|((known, start), _)| *known == pid && is_it(*start)) {
            return true;
        }
        if self.0.iter().count() < MAX_OF_USER {
            return false;
        }
        let user = user_of(pid);
        if user.is_none() || !self.0.has_all_of(&user) {
            return false;
        }
        // Processes that have ended do not count.
        self.forget_ended();
        self.0.has_all_of(&user)
    }

    fn forget_ended(&mut self) {
        self.0.keep_only(|((pid, start), _)| match try_started(*pid) {
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
        let mut silent = SilentProcesses::default();
        assert!(!silent.has(std::process::id()));
        let mut children: Vec<Child> = (0..MAX_OF_USER).map(|_| sleeping()).collect();
        for (already, child) in children.iter().enumerate() {
            assert!(!silent.has(child.id()), "{already} were silent");
            silent.add(child.id());
            assert!(silent.has(child.id()));
        }
        let (mut other, init) = (sleeping(), 1);
        assert!(silent.has(other.id()), "it is of the same user");
        let is_root = user_of(init) == user_of(std::process::id());
        assert_eq!(silent.has(init), is_root, "another user's is asked");
        let mut first = children.remove(0);
        for child in [&mut first, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let mut next = sleeping();
        assert!(!silent.has(next.id()), "fewer are left");
        for child in children.iter_mut().chain([&mut next]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    #[test]
    fn after_a_hundred_thousand_that_ended_none_is_remembered() {
        let mut silent = SilentProcesses::default();
        for pid in 0..100_000 {
            // No process has such a number.
            silent.add(u32::MAX - pid);
        }
        assert!(silent.0.iter().count() <= 1);
    }
}
