//! Processes that stand still while others of the node move.
//!
//! Under `--all` the node has many tenants. What one does says nothing of another's job, so each process is
//! judged by itself: a loop of calls hides no hang but its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Most dumps for one tenant's processes: half of all.
pub(super) const MAX_OF_TENANT: u32 = 50;

/// A process, and the number of its tenant where that is known.
pub(super) type Member = (u32, Option<u32>);

#[derive(Debug)]
struct Known {
    /// Time of its last move, or of the first look at it.
    since: Instant,
    was_dumped: bool,
}

/// Time for which each process has not moved.
#[derive(Debug)]
pub(super) struct Stillness {
    limit: Duration,
    known: BTreeMap<u32, Known>,
    dumps: BTreeMap<Option<u32>, u32>,
}

impl Stillness {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, known: BTreeMap::new(), dumps: BTreeMap::new() }
    }

    /// Begins anew: what moved until now was not seen.
    pub(super) fn begin(&mut self) {
        self.known.clear();
    }

    /// Looks at the processes that are there. Returns those to dump: of tenants of whom one has stood still
    /// for too long, all. Of each standstill there is one dump. `moved`: when a process moved last.
    pub(super) fn look(
        &mut self,
        members: &[Member],
        moved: impl Fn(u32) -> Option<Instant>,
        now: Instant,
    ) -> Vec<u32> {
        let there: BTreeSet<u32> = members.iter().map(|(pid, _)| *pid).collect();
        self.known.retain(|pid, _| there.contains(pid));
        let mut standing = BTreeSet::new();
        for (pid, tenant) in members {
            let known = self.known.entry(*pid).or_insert(Known { since: now, was_dumped: false });
            if let Some(at) = moved(*pid).filter(|at| *at > known.since) {
                *known = Known { since: at, was_dumped: false };
            }
            let is_long = now.saturating_duration_since(known.since) >= self.limit;
            let dumps = self.dumps.get(tenant).copied().unwrap_or_default();
            if is_long && !known.was_dumped && dumps < MAX_OF_TENANT {
                standing.insert(*tenant);
            }
        }
        for tenant in &standing {
            *self.dumps.entry(*tenant).or_default() += 1;
        }
        let chosen = members.iter().filter(|(_, tenant)| standing.contains(tenant)).map(|(pid, _)| *pid);
        let chosen: Vec<u32> = chosen.collect();
        for pid in &chosen {
            // Ranks of a job do not stop at the same moment, and one dump has them all.
            if let Some(known) = self.known.get_mut(pid)
                && now.saturating_duration_since(known.since) >= self.limit / 2
            {
                known.was_dumped = true;
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn after(begun: Instant, seconds: u64) -> Instant {
        begun + Duration::from_secs(seconds)
    }

    #[test]
    fn a_job_that_stands_is_dumped_once_although_another_tenant_goes_on() {
        let (mut stillness, begun) = (Stillness::new(LIMIT), Instant::now());
        let members = [(1, Some(1)), (2, Some(1)), (3, Some(2))];
        let mut dumped = Vec::new();
        for second in 0..60 {
            let now = after(begun, second);
            // Processes 1 and 2 stop after 5 and 7 s; 3 calls NCCL again and again.
            let moved =
                |pid| Some(after(begun, if pid == 3 { second } else { second.min(3 + 2 * u64::from(pid)) }));
            let chosen = stillness.look(&members, moved, now);
            if !chosen.is_empty() {
                dumped.push((second, chosen));
            }
        }
        assert_eq!(dumped, [(15, vec![1, 2])]);
    }

    #[test]
    fn it_is_dumped_again_after_it_has_moved_and_nobody_takes_all_dumps() {
        let (mut stillness, begun) = (Stillness::new(LIMIT), Instant::now());
        let members = [(1, Some(1)), (2, Some(2))];
        let mut counts = [0, 0];
        for second in 0..10_000 {
            // The first stops and goes on again and again; the second stops in the end.
            let moved = |pid| Some(after(begun, if pid == 1 { second / 20 * 20 } else { second.min(9000) }));
            for pid in stillness.look(&members, moved, after(begun, second)) {
                counts[pid as usize - 1] += 1;
            }
        }
        assert_eq!(counts, [MAX_OF_TENANT, 1]);
    }

    #[test]
    fn what_was_not_watched_did_not_stand_still() {
        let (mut stillness, begun) = (Stillness::new(LIMIT), Instant::now());
        assert!(stillness.look(&[(1, None)], |_| None, begun).is_empty());
        stillness.begin();
        assert!(stillness.look(&[(1, None)], |_| None, after(begun, 100)).is_empty());
        assert_eq!(stillness.look(&[(1, None)], |_| None, after(begun, 110)), [1]);
        for pid in 0..100_000 {
            stillness.look(&[(pid, None)], |_| None, after(begun, 110));
        }
        assert_eq!(stillness.known.len(), 1, "those that have ended are forgotten");
    }
}
