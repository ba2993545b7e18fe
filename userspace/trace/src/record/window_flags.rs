//! Decides which window is wanted, by the flag file where ncclflow sees it, and where traced processes see it
//! in their containers.
//!
//! One window is open at a time, for the processes of all flags that are there. So a flag that comes while a
//! window is open ends that window and begins one with more processes, and a flag that goes leaves one with
//! fewer. Our own flag is for all processes; others add nothing to it.
//!
//! A tenant who plays with a flag would cut the windows of others in pieces. So flags in containers may open
//! windows only so often.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    os::fd::BorrowedFd,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    container_flags::{ContainerFlags, Flag, FlagsInContainers, Member, MountNamespace},
    mailbox::EventSender,
    window_flag::FlagFile,
};

/// Windows that a tenant's flags can open one after the other, and time until one more can be.
const BURST: u32 = 30;
const EVERY: Duration = Duration::from_secs(10);

/// Processes that a window is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    /// The processes of containers, by the flag files in them.
    Containers(BTreeSet<Flag>),
}

/// State of the flags.
#[derive(Debug, Default)]
pub(super) struct FlagsSeen {
    /// The window that is to be open.
    pub(super) wanted: Option<Scope>,
    /// Our own flag is there, and has not gone since the last look.
    own_stayed: bool,
    containers: FlagsInContainers,
}

/// Fate of a flag in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Opens no window now, as its tenant has opened too many.
    HeldBack,
    /// Has opened a window.
    Granted,
    /// Opens no window before it has gone, as a limit has closed its last one.
    Spent,
}

#[derive(Debug, Default)]
pub(super) struct WindowFlags {
    /// Our own flag. Without it a window is always wanted.
    own: Option<FlagFile>,
    containers: Option<ContainerFlags>,
    /// Fates of flags in containers, each while it is there.
    fates: BTreeMap<Flag, Fate>,
    /// Until when the windows that a tenant has opened count. A tenant without an entry has opened none for
    /// long.
    busy: HashMap<String, Instant>,
}

impl WindowFlags {
    /// `path` is `None` for windows that are always wanted. Containers are looked into if `in_containers`.
    pub(super) fn watch(path: Option<&Path>, in_containers: bool, events: &EventSender) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let own = FlagFile::watch(path)?;
        let containers = in_containers.then(|| ContainerFlags::watch(path, events)).transpose()?;
        Ok(Self { own: Some(own), containers, ..Self::default() })
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.own.as_ref().map(FlagFile::fd)
    }

    /// Looks at the flags. `traced` returns the traced processes, and `tenant` the tenant of a container's.
    /// Also returns tenants that have opened too many windows, each once for a flag.
    pub(super) fn look(
        &mut self,
        traced: impl FnOnce() -> Vec<Member>,
        tenant: impl Fn(&BTreeSet<u32>) -> String,
    ) -> (FlagsSeen, Vec<String>) {
        let Some(own) = &mut self.own else {
            let seen = FlagsSeen { wanted: Some(Scope::All), own_stayed: true, ..FlagsSeen::default() };
            return (seen, Vec::new());
        };
        let (is_there, own_stayed) = own.look();
        let mut containers = FlagsInContainers::new();
        if let Some(flags) = &mut self.containers {
            containers = flags.look(traced());
            containers.retain(|(_, file), _| Some(*file) != own.id);
        }
        let mut seen = FlagsSeen { wanted: None, own_stayed, containers };
        if is_there && !own.is_spent {
            self.fates.retain(|flag, _| seen.containers.contains_key(flag));
            seen.wanted = Some(Scope::All);
            return (seen, Vec::new());
        }
        let over = self.want(&mut seen, Instant::now(), tenant);
        (seen, over)
    }

    /// Decides which flags in containers want a window. Returns tenants that have opened too many, each once
    /// for a flag.
    fn want(
        &mut self,
        seen: &mut FlagsSeen,
        now: Instant,
        tenant: impl Fn(&BTreeSet<u32>) -> String,
    ) -> Vec<String> {
        let (mut wanted, mut over) = (BTreeSet::new(), Vec::new());
        let Self { fates, busy, .. } = self;
        fates.retain(|flag, _| seen.containers.contains_key(flag));
        busy.retain(|_, until| *until > now);
        for (flag, pids) in &seen.containers {
            let fate = fates.get(flag).copied();
            if fate == Some(Fate::Spent) {
                continue;
            }
            let is_busy = |whose| busy.get(whose).is_some_and(|until| *until > now + EVERY * (BURST - 1));
            if fate == Some(Fate::Granted) || !is_busy(&tenant(pids)) {
                wanted.insert(*flag);
            } else if fates.insert(*flag, Fate::HeldBack).is_none() {
                over.push(tenant(pids));
            }
        }
        seen.wanted = (!wanted.is_empty()).then_some(Scope::Containers(wanted));
        over
    }

    /// Notes that a window of these processes was opened.
    pub(super) fn opened(
        &mut self,
        scope: &Scope,
        seen: &FlagsSeen,
        now: Instant,
        tenant: impl Fn(&BTreeSet<u32>) -> String,
    ) {
        let Scope::Containers(flags) = scope else { return };
        for flag in flags {
            if self.fates.insert(*flag, Fate::Granted) != Some(Fate::Granted) {
                let whose = seen.containers.get(flag).map(&tenant).unwrap_or_default();
                let until = self.busy.entry(whose).or_insert(now);
                *until = (*until).max(now) + EVERY;
            }
        }
    }

    /// Notes that a limit has closed the window that these flags had opened.
    pub(super) fn spend(&mut self, scope: &Scope) {
        match (scope, &mut self.own) {
            (Scope::All, Some(own)) => own.is_spent = true,
            (Scope::All, None) => {}
            (Scope::Containers(flags), _) => self.fates.extend(flags.iter().map(|flag| (*flag, Fate::Spent))),
        }
    }
}

impl FlagsSeen {
    /// Tells whether a flag that opened this window has gone, also if it is there again.
    pub(super) fn has_gone(&self, scope: &Scope) -> bool {
        match scope {
            Scope::All => !self.own_stayed,
            Scope::Containers(flags) => flags.iter().any(|flag| !self.containers.contains_key(flag)),
        }
    }

    /// Returns the traced processes of a window of some containers, by container.
    pub(super) fn members(&self, scope: &Scope) -> Option<BTreeMap<MountNamespace, BTreeSet<u32>>> {
        let Scope::Containers(flags) = scope else { return None };
        let of = |flag: &Flag| (flag.0, self.containers.get(flag).cloned().unwrap_or_default());
        Some(flags.iter().map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::container_flags::FlagId;

    /// Flags by container, each with a process whose number stands for its tenant.
    fn seen(flags: &[(MountNamespace, FlagId, u32)]) -> FlagsSeen {
        let flag = |&(namespace, file, pid): &_| ((namespace, file), BTreeSet::from([pid]));
        FlagsSeen { containers: flags.iter().map(flag).collect(), ..FlagsSeen::default() }
    }

    fn tenant(pids: &BTreeSet<u32>) -> String {
        format!("{pids:?}")
    }

    fn file(inode: u64) -> FlagId {
        FlagId::made(inode)
    }

    #[test]
    fn who_plays_with_a_flag_is_held_back_and_others_are_not() {
        let (mut windows, begun) = (WindowFlags::default(), Instant::now());
        let (mut opened, mut held_back) = (0, Vec::new());
        // A new flag each second, of one tenant, in another mount namespace each time.
        for second in 0..600 {
            let now = begun + Duration::from_secs(second);
            let mut flags = seen(&[(second, file(second), 1)]);
            held_back.extend(windows.want(&mut flags, now, tenant));
            if let Some(scope) = flags.wanted.clone() {
                windows.opened(&scope, &flags, now, tenant);
                opened += 1;
            }
        }
        assert!((85..=95).contains(&opened), "30, and one each ten seconds: {opened}");
        assert_eq!(held_back.len(), 600 - opened);
        assert!(held_back.iter().all(|tenant| tenant == "{1}"));
        let now = begun + Duration::from_secs(600);
        // The first has just opened another, or may not yet.
        let mut last = seen(&[(600, file(600), 1)]);
        windows.want(&mut last, now, tenant);
        if let Some(scope) = last.wanted.clone() {
            windows.opened(&scope, &last, now, tenant);
        }
        // The other's flag goes on to be wanted whatever the first does.
        let mut both = seen(&[(1, file(1000), 1), (2, file(2000), 2)]);
        assert_eq!(windows.want(&mut both, now, tenant), ["{1}"]);
        assert_eq!(both.wanted, Some(Scope::Containers(BTreeSet::from([(2, file(2000))]))));
        windows.opened(&both.wanted.clone().unwrap(), &both, now, tenant);
        for _ in 0..100 {
            let mut again = seen(&[(2, file(2000), 2)]);
            assert!(windows.want(&mut again, now, tenant).is_empty());
            windows.opened(&again.wanted.clone().unwrap(), &again, now, tenant);
        }
        assert_eq!(windows.busy.len(), 2);
        // A flag that was held back opens a window when it is its turn.
        let mut later = seen(&[(1, file(1000), 1)]);
        assert!(windows.want(&mut later, now + Duration::from_secs(60), tenant).is_empty());
        assert!(later.wanted.is_some());
        windows.want(&mut seen(&[]), now + Duration::from_secs(3600), tenant);
        assert!(windows.busy.is_empty() && windows.fates.is_empty());
    }

    #[test]
    fn a_spent_flag_opens_no_window_before_it_has_gone() {
        let (mut windows, now) = (WindowFlags::default(), Instant::now());
        let flags = [(1, file(7), 1)];
        let mut wants = |flags: &[_], spends| {
            let mut seen = seen(flags);
            windows.want(&mut seen, now, tenant);
            if let (true, Some(scope)) = (spends, &seen.wanted) {
                windows.opened(scope, &seen, now, tenant);
                windows.spend(scope);
            }
            seen.wanted.is_some()
        };
        assert!(wants(&flags, true) && !wants(&flags, false) && !wants(&[], false) && wants(&flags, false));
        assert!(wants(&[(1, file(8), 1)], false), "it was made again");
    }
}
