//! Shares of limited things, by process.

use std::collections::{BTreeMap, BTreeSet};

use flow::session::MAX_ENDED_TARGETS;

/// Number of things that each process has.
#[derive(Debug, Default)]
pub(super) struct Shares {
    held: BTreeMap<u32, usize>,
    /// Reverse of `held`, sorted.
    by_number: BTreeSet<(usize, u32)>,
    /// Refusals, by process: it had most, or would have had.
    refused: BTreeMap<u32, u64>,
}

impl Shares {
    /// Notes that the process has one more.
    pub(super) fn take(&mut self, pid: u32) {
        self.change(pid, |held| held + 1);
    }

    /// Notes that the process has one less.
    pub(super) fn give_back(&mut self, pid: u32) {
        self.change(pid, |held| held.saturating_sub(1));
    }

    fn change(&mut self, pid: u32, to: impl FnOnce(usize) -> usize) {
        let before = self.held.remove(&pid).unwrap_or(0);
        self.by_number.remove(&(before, pid));
        let after = to(before);
        if after > 0 {
            self.held.insert(pid, after);
            self.by_number.insert((after, pid));
        }
    }

    /// Returns the process that must give one up for this process when none is left. It then still has as
    /// many as this one.
    pub(super) fn who_gives_up_for(&self, pid: u32) -> Option<u32> {
        let (most, whose) = self.by_number.last()?;
        let own = self.held.get(&pid).copied().unwrap_or(0);
        (*most > own + 1).then_some(*whose)
    }

    /// Notes that so much of this process was refused.
    pub(super) fn refuse(&mut self, pid: u32, count: u64) {
        // As many are named as a report has processes that have ended.
        if self.refused.len() < MAX_ENDED_TARGETS || self.refused.contains_key(&pid) {
            *self.refused.entry(pid).or_default() += count;
        }
    }

    pub(super) fn refused(&self) -> &BTreeMap<u32, u64> {
        &self.refused
    }

    pub(super) fn has_refused_nobody(&self) -> bool {
        self.refused.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_most_gives_up_until_all_have_as_many() {
        let mut shares = Shares::default();
        assert_eq!(shares.who_gives_up_for(1), None, "nobody has any");
        (0..6).for_each(|_| shares.take(1));
        assert_eq!((shares.who_gives_up_for(1), shares.who_gives_up_for(2)), (None, Some(1)));
        while let Some(whose) = shares.who_gives_up_for(2) {
            shares.give_back(whose);
            shares.take(2);
        }
        assert_eq!((shares.held[&1], shares.held[&2]), (3, 3));
        for pid in 0..100_000 {
            shares.take(pid);
            shares.refuse(pid, 1);
            shares.give_back(pid);
        }
        assert_eq!((shares.held.len(), shares.by_number.len()), (2, 2));
        assert!(shares.refused.len() <= MAX_ENDED_TARGETS);
    }
}
