//! Limits how often flags in containers may open windows. A flag that comes or goes ends the window that is
//! open, so a tenant who plays with one would cut the windows of others in pieces.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

use super::{
    container_flags::{FlagId, MountNamespace},
    window_flags::{FlagsSeen, Scope},
};

/// Windows that a tenant's flags can open one after the other, and time until one more can be.
const BURST: u32 = 30;
const EVERY: Duration = Duration::from_secs(10);

/// Windows that each tenant has opened.
#[derive(Debug, Default)]
pub(super) struct WindowPace {
    /// Until when the windows that a tenant has opened count. A tenant without an entry has opened none for
    /// long.
    busy: HashMap<String, Instant>,
    /// Flags that have opened a window, and those that were held back; each while it is there.
    granted: BTreeMap<MountNamespace, FlagId>,
    held_back: BTreeMap<MountNamespace, FlagId>,
}

impl WindowPace {
    /// Takes flags of tenants that have opened too many windows out of what is wanted. Returns those tenants,
    /// each once for a flag.
    pub(super) fn hold_back(
        &mut self,
        seen: &mut FlagsSeen,
        now: Instant,
        tenant: impl Fn(&BTreeSet<u32>) -> String,
    ) -> Vec<String> {
        self.busy.retain(|_, until| *until > now);
        self.granted.retain(|namespace, file| seen.has(*namespace, *file));
        self.held_back.retain(|namespace, file| seen.has(*namespace, *file));
        let Some(scope @ Scope::Containers(wanted)) = &seen.wanted else { return Vec::new() };
        let members = seen.members(scope).unwrap_or_default();
        let (mut left, mut over) = (BTreeMap::new(), Vec::new());
        for (&namespace, &file) in wanted {
            let is_granted = self.granted.get(&namespace) == Some(&file);
            let whose = || members.get(&namespace).map(&tenant).unwrap_or_default();
            if is_granted || !self.is_busy(&whose(), now) {
                left.insert(namespace, file);
            } else if self.held_back.insert(namespace, file) != Some(file) {
                over.push(whose());
            }
        }
        seen.wanted = (!left.is_empty()).then_some(Scope::Containers(left));
        over
    }

    /// Notes that a window of these containers was opened.
    pub(super) fn opened(
        &mut self,
        scope: &Scope,
        seen: &FlagsSeen,
        now: Instant,
        tenant: impl Fn(&BTreeSet<u32>) -> String,
    ) {
        let (Scope::Containers(files), Some(members)) = (scope, seen.members(scope)) else { return };
        for (namespace, file) in files {
            if self.granted.insert(*namespace, *file) != Some(*file) {
                let whose = members.get(namespace).map(&tenant).unwrap_or_default();
                let until = self.busy.entry(whose).or_insert(now);
                *until = (*until).max(now) + EVERY;
            }
        }
    }

    fn is_busy(&self, tenant: &str, now: Instant) -> bool {
        self.busy.get(tenant).is_some_and(|until| *until > now + EVERY * (BURST - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::container_flags::ContainerFlag;

    /// Flags by container, each with a process whose number stands for its tenant.
    fn seen(flags: &[(MountNamespace, FlagId, u32)]) -> FlagsSeen {
        let flag = |(namespace, file, pid): &(MountNamespace, FlagId, u32)| {
            (*namespace, ContainerFlag { file: *file, pids: BTreeSet::from([*pid]) })
        };
        FlagsSeen::of_containers(flags.iter().map(flag).collect())
    }

    fn tenant(pids: &BTreeSet<u32>) -> String {
        format!("{pids:?}")
    }

    fn file(inode: u64) -> FlagId {
        FlagId::made(inode)
    }

    #[test]
    fn who_plays_with_a_flag_is_held_back_and_others_are_not() {
        let (mut pace, begun) = (WindowPace::default(), Instant::now());
        let (mut opened, mut held_back) = (0, Vec::new());
        // A new flag each second, of one tenant, in another mount namespace each time.
        for second in 0..600 {
            let now = begun + Duration::from_secs(second);
            let mut flags = seen(&[(second, file(second), 1)]);
            held_back.extend(pace.hold_back(&mut flags, now, tenant));
            if let Some(scope) = flags.wanted.clone() {
                pace.opened(&scope, &flags, now, tenant);
                opened += 1;
            }
        }
        assert!((85..=95).contains(&opened), "30, and one each ten seconds: {opened}");
        assert_eq!(held_back.len(), 600 - opened);
        assert!(held_back.iter().all(|tenant| tenant == "{1}"));
        let now = begun + Duration::from_secs(600);
        // The first has just opened another, or may not yet.
        let mut last = seen(&[(600, file(600), 1)]);
        pace.hold_back(&mut last, now, tenant);
        if let Some(scope) = last.wanted.clone() {
            pace.opened(&scope, &last, now, tenant);
        }
        // The other's flag goes on to be wanted whatever the first does.
        let mut both = seen(&[(1, file(1000), 1), (2, file(2000), 2)]);
        assert_eq!(pace.hold_back(&mut both, now, tenant), ["{1}"]);
        assert_eq!(both.wanted, Some(Scope::Containers(BTreeMap::from([(2, file(2000))]))));
        pace.opened(&both.wanted.clone().unwrap(), &both, now, tenant);
        for _ in 0..100 {
            let mut again = seen(&[(2, file(2000), 2)]);
            assert!(pace.hold_back(&mut again, now, tenant).is_empty());
            pace.opened(&again.wanted.clone().unwrap(), &again, now, tenant);
        }
        assert_eq!(pace.busy.len(), 2);
        // A flag that was held back opens a window when it is its turn.
        let mut later = seen(&[(1, file(1000), 1)]);
        assert!(pace.hold_back(&mut later, now + Duration::from_secs(60), tenant).is_empty());
        assert!(later.wanted.is_some());
        pace.hold_back(&mut seen(&[]), now + Duration::from_secs(3600), tenant);
        assert!(pace.busy.is_empty() && pace.granted.is_empty() && pace.held_back.is_empty());
    }
}
