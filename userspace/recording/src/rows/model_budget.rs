//! Limits the memory of all processes' models together, beside the limits within each.
//!
//! A tenant decides how many communicators it has and how many of its ops never end. So models are weighed
//! now and then. A model over the limit of one gives out its open ops as they are, and begins anew; where all
//! together are over theirs, the largest does. The recording has all records all the same.

use std::collections::BTreeMap;

use flow::quota::{Limits, Shares};

/// Most bytes of all processes' models together, and of one.
const LIMITS: Limits = Limits { all: 512 << 20, of_one: 256 << 20 };

/// Records between two weighings: a prime, so that processes that take turns are all met.
const EVERY: u32 = 1021;

/// Bytes held for a process that has done nothing.
const BASE: usize = 4 << 10;

/// Memory of models, as in [`flow::model::Session::held_bytes`].
#[derive(Debug)]
pub struct ModelBudget {
    limits: Limits,
    held: Shares,
    records: u32,
}

impl Default for ModelBudget {
    fn default() -> Self {
        Self { limits: LIMITS, held: Shares::default(), records: 0 }
    }
}

impl ModelBudget {
    /// Counts a record. Tells whether the model of its process is to be weighed.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        self.records += 1;
        let is_due = self.records >= EVERY;
        if is_due {
            self.records = 0;
        }
        is_due
    }

    /// Notes that this process's model holds so many bytes. Returns the process that must begin anew.
    pub fn weigh(&mut self, tgid: u32, bytes: usize) -> Option<u32> {
        self.held.forget(tgid);
        self.held.take(tgid, bytes.saturating_add(BASE));
        let whose = if self.held.of(tgid) > self.limits.of_one {
            Some(tgid)
        } else if self.held.all() > self.limits.all {
            self.held.largest()
        } else {
            None
        };
        if let Some(whose) = whose {
            self.forget(whose);
            self.held.refuse(whose, 1);
        }
        whose
    }

    /// Forgets a process, which holds nothing any more.
    pub fn forget(&mut self, tgid: u32) {
        self.held.forget(tgid);
    }

    /// Returns how often processes had to begin anew.
    pub fn over(&self) -> &BTreeMap<u32, u64> {
        self.held.refused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    #[test]
    fn who_holds_most_begins_anew() {
        let limits = Limits { all: 200 * KIB, of_one: 100 * KIB };
        let mut budget = ModelBudget { limits, ..ModelBudget::default() };
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
        assert_eq!((budget.held.all(), budget.over().len()), (0, 0));
    }
}
