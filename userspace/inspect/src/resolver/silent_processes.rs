//! Processes that did not answer. They are not asked again before the child has come back that asked, and
//! then after growing pauses. If a tenant has had many of them, none of the tenant's processes is asked, so
//! that the cost stays with that tenant.

use std::time::{Duration, Instant};

use crate::{
    process::{Tenant, is_gone, running::started, try_started},
    unresponsive::{Returns, Silent},
};

/// Processes of one tenant that may be silent; then no process of the tenant is asked.
const MAX_OF_TENANT: usize = 16;
/// Time for which a process counts that was silent, whether it is asked again or not: else a tenant with very
/// many, each of which is put off for a minute, never has so many.
const COUNTED: Duration = Duration::from_mins(10);
/// Time for which the tenant of the process that was asked for last is not looked up again.
const SAME: Duration = Duration::from_secs(1);

/// A process by its number and start, so that a later process of the same number is another.
type Known = (u32, Option<u64>);

/// Silent processes and when they were, each with its tenant. `None`: the process had ended, or has no user.
#[derive(Debug, Default)]
pub(super) struct SilentProcesses {
    silent: Silent<(Known, Instant), Option<Tenant>, MAX_OF_TENANT>,
    returns: Returns<Known>,
    /// Tenant of the process that was asked for last.
    last: Option<(u32, Instant, Option<Tenant>)>,
}

impl SilentProcesses {
    /// Adds a process that did not answer. `left`: the child that still waits for it.
    pub(super) fn add(&mut self, pid: u32, left: Option<u32>, now: Instant) {
        self.forget_ended();
        let known = (pid, started(pid));
        self.returns.left(known, left, now);
        self.silent.keep_only(|((before, _), _)| *before != known);
        self.silent.add((known, now), Tenant::read(pid));
    }

    /// Tells whether a process is not to be asked now.
    pub(super) fn has(&mut self, pid: u32, now: Instant) -> bool {
        let Self { silent, returns, .. } = self;
        silent.keep_only(|((known, at), _)| {
            now.duration_since(*at) < COUNTED || returns.are_awaited(known, now)
        });
        let is_it = |start: Option<u64>| match try_started(pid) {
            Ok(now) => start == now,
            // An error other than that it is gone does not show whether it is another process.
            Err(error) => start.is_none() || !is_gone(&error),
        };
        let is_awaited = |known: &Known| known.0 == pid && returns.are_awaited(known, now) && is_it(known.1);
        if silent.iter().any(|((known, _), _)| is_awaited(known)) {
            return true;
        }
        if silent.iter().count() < MAX_OF_TENANT {
            return false;
        }
        let tenant = self.tenant(pid, now);
        if tenant.is_none() || !self.silent.has_all_of(&tenant) {
            return false;
        }
        // Processes that have ended do not count.
        self.forget_ended();
        self.silent.has_all_of(&tenant)
    }

    fn tenant(&mut self, pid: u32, now: Instant) -> Option<Tenant> {
        let last = self.last.take().filter(|(last, at, _)| *last == pid && now.duration_since(*at) < SAME);
        let (.., tenant) = self.last.insert(last.unwrap_or_else(|| (pid, now, Tenant::read(pid))));
        tenant.clone()
    }

    fn forget_ended(&mut self) {
        self.silent.keep_only(|(((pid, start), _), _)| match try_started(*pid) {
            Ok(now) => start.is_some() && *start == now,
            Err(error) => !is_gone(&error),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeping() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    #[test]
    fn one_that_was_silent_is_not_asked_and_many_of_a_tenant_stand_for_all_until_they_end() {
        let (mut silent, now) = (SilentProcesses::default(), Instant::now());
        assert!(!silent.has(std::process::id(), now));
        let mut children: Vec<Child> = (0..MAX_OF_TENANT).map(|_| sleeping()).collect();
        for (already, child) in children.iter().enumerate() {
            assert!(!silent.has(child.id(), now), "{already} were silent");
            silent.add(child.id(), None, now);
            assert!(silent.has(child.id(), now));
        }
        let (mut other, init) = (sleeping(), 1);
        assert!(silent.has(other.id(), now), "it is of the same tenant");
        let is_own = Tenant::read(init) == Tenant::read(std::process::id());
        assert_eq!(silent.has(init, now), is_own, "another tenant's is asked");
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
    fn those_that_are_put_off_no_more_count_for_ten_minutes() {
        let (mut silent, now) = (SilentProcesses::default(), Instant::now());
        let mut children: Vec<Child> = (0..=MAX_OF_TENANT).map(|_| sleeping()).collect();
        let other = children[MAX_OF_TENANT].id();
        for child in &children[..MAX_OF_TENANT - 1] {
            // Each once, however often it was silent.
            silent.add(child.id(), None, now);
            silent.add(child.id(), None, now);
        }
        assert!(!silent.has(other, now));
        silent.add(children[MAX_OF_TENANT - 1].id(), None, now);
        let pauses_are_over = now + Duration::from_mins(5);
        assert!(silent.has(other, pauses_are_over) && silent.has(children[0].id(), pauses_are_over));
        assert!(!silent.has(other, now + COUNTED));
        for child in &mut children {
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
