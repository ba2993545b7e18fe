//! Limits the memory of all processes' models together, beside the limits within each.
//!
//! A tenant decides how many communicators it has and how many of its ops never end. So models are weighed
//! now and then. A model over the limit of one gives out its open ops as they are, and begins anew; where all
//! together are over theirs, the largest does. The recording has all records all the same.

use std::collections::BTreeMap;

/// Most bytes of one process's model, and of all together.
const OF_ONE: usize = 256 << 20;
const OF_ALL: usize = 512 << 20;

/// Records between two weighings: a prime, so that processes that take turns are all met.
const EVERY: u32 = 1021;

/// Bytes held for a process that has done nothing.
const BASE: usize = 4 << 10;

/// Memory of models, as in [`flow::model::Session::held_bytes`].
#[derive(Debug)]
pub(crate) struct ModelBudget {
    of_one: usize,
    of_all: usize,
    held: BTreeMap<u32, usize>,
    total: usize,
    records: u32,
    /// Number of times each process had to begin anew.
    over: BTreeMap<u32, u64>,
}

impl Default for ModelBudget {
    fn default() -> Self {
        Self {
            of_one: OF_ONE,
            of_all: OF_ALL,
            held: BTreeMap::new(),
            total: 0,
            records: 0,
            over: BTreeMap::new(),
        }
    }
}

impl ModelBudget {
    #[cfg(test)]
    pub(crate) fn of(of_one: usize, of_all: usize) -> Self {
        Self { of_one, of_all, ..Self::default() }
    }

    /// Counts a record. Tells whether the model of its process is to be weighed.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        self.records += 1;
        let is_due = self.records >= EVERY;
        if is_due {
            self.records = 0;
        }
        is_due
    }

    /// Notes that this process's model holds so many bytes. Returns the process that must begin anew.
    pub(crate) fn weigh(&mut self, tgid: u32, bytes: usize) -> Option<u32> {
        let bytes = bytes.saturating_add(BASE);
        let before = self.held.insert(tgid, bytes).unwrap_or(0);
        self.total = self.total.saturating_sub(before).saturating_add(bytes);
        let whose = if bytes > self.of_one {
            Some(tgid)
        } else if self.total > self.of_all {
            self.held.iter().max_by_key(|(_, bytes)| **bytes).map(|(tgid, _)| *tgid)
        } else {
            None
        };
        if let Some(whose) = whose {
            self.forget(whose);
            // As many are named as a report has processes that have ended.
            if self.over.len() < flow::session::MAX_ENDED_TARGETS || self.over.contains_key(&whose) {
                *self.over.entry(whose).or_default() += 1;
            }
        }
        whose
    }

    /// Forgets a process, which holds nothing any more.
    pub(crate) fn forget(&mut self, tgid: u32) {
        self.total = self.total.saturating_sub(self.held.remove(&tgid).unwrap_or(0));
    }

    /// Returns how often processes had to begin anew.
    pub(crate) fn over(&self) -> &BTreeMap<u32, u64> {
        &self.over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    #[test]
    fn who_holds_most_begins_anew() {
        let mut budget = ModelBudget::of(100 * KIB, 200 * KIB);
        assert_eq!(budget.weigh(1, 90 * KIB), None);
        assert_eq!(budget.weigh(2, 60 * KIB), None);
        assert_eq!(budget.weigh(2, 97 * KIB), Some(2), "one may not hold so much");
        assert_eq!(budget.weigh(3, 50 * KIB), None);
        assert_eq!(budget.weigh(4, 60 * KIB), Some(1), "all may not hold so much, and the first holds most");
        assert_eq!(budget.weigh(1, 20 * KIB), None);
        assert_eq!(budget.over(), &BTreeMap::from([(1, 1), (2, 1)]));
    }

    #[test]
    fn after_a_hundred_thousand_processes_as_little_is_held_as_after_none() {
        let mut budget = ModelBudget::default();
        for tgid in 1..=100_000 {
            assert_eq!(budget.weigh(tgid, 100 * KIB), None);
            budget.forget(tgid);
        }
        assert_eq!((budget.total, budget.held.len(), budget.over.len()), (0, 0, 0));
    }
}
