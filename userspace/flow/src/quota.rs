//! Quotas: how a limited amount is shared between processes or tenants, so that one that wants very much
//! takes nothing from the others.

use std::{collections::BTreeMap, hash::Hash};

use foldhash::HashMap;

/// Most sharers whose refusals are counted: as many as a report has processes that have ended.
const MAX_NAMED: usize = 1000;

/// Most that all may have together, and that one may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub all: usize,
    pub of_one: usize,
}

impl Limits {
    /// Returns limits of which one may have three quarters.
    pub const fn three_quarters_for_one(all: usize) -> Self {
        Self { all, of_one: all / 4 * 3 }
    }

    /// Tells whether there is one more for a sharer that has `own`, where all together have `all`.
    pub const fn have_room(self, all: usize, own: usize) -> bool {
        all < self.all && own < self.of_one
    }
}

/// Shares of a limited amount, by the number of a process or tenant.
#[derive(Debug, Default)]
pub struct Shares {
    held: HashMap<u32, usize>,
    all: usize,
    /// Upper bound of the shares, so that most questions need no look at all of them.
    largest: usize,
    refused: BTreeMap<u32, u64>,
}

impl Shares {
    /// Returns what all have together.
    pub fn all(&self) -> usize {
        self.all
    }

    pub fn of(&self, whose: u32) -> usize {
        self.held.get(&whose).copied().unwrap_or(0)
    }

    /// Notes that this one has so much more.
    pub fn take(&mut self, whose: u32, amount: usize) {
        let share = self.held.entry(whose).or_default();
        *share = share.saturating_add(amount);
        self.largest = self.largest.max(*share);
        self.all = self.all.saturating_add(amount);
    }

    /// Notes that this one has so much less.
    pub fn give_back(&mut self, whose: u32, amount: usize) {
        let Some(share) = self.held.get_mut(&whose) else { return };
        let amount = amount.min(*share);
        *share -= amount;
        self.all = self.all.saturating_sub(amount);
        if *share == 0 {
            self.held.remove(&whose);
        }
    }

    /// Notes that this one has nothing any more.
    pub fn forget(&mut self, whose: u32) {
        self.give_back(whose, usize::MAX);
    }

    /// Returns who has most.
    pub fn largest(&self) -> Option<u32> {
        let held = self.held.iter();
        held.max_by_key(|(whose, share)| (**share, **whose)).map(|(whose, _)| *whose)
    }

    /// Returns who must give one up for this one when none is left: the one that has most. It then still has
    /// as many as this one.
    pub fn gives_up_for(&mut self, whose: u32) -> Option<u32> {
        let next = self.of(whose).saturating_add(1);
        // Whoever floods asks most often, and has most itself.
        if self.largest <= next {
            return None;
        }
        let largest = self.largest()?;
        self.largest = self.of(largest);
        (self.largest > next).then_some(largest)
    }

    /// Counts what was refused to this one, or taken from it.
    pub fn refuse(&mut self, whose: u32, count: u64) {
        if self.refused.len() < MAX_NAMED || self.refused.contains_key(&whose) {
            *self.refused.entry(whose).or_default() += count;
        }
    }

    pub fn refused(&self) -> &BTreeMap<u32, u64> {
        &self.refused
    }
}

/// Chooses up to `most`: the first of each sharer, then the second of each, and so on. Also returns the rest.
pub fn in_turns<K: Eq + Hash, T>(items: impl IntoIterator<Item = (K, T)>, most: usize) -> (Vec<T>, Vec<T>) {
    let mut of_sharer = HashMap::<K, usize>::default();
    let mut turns: Vec<(usize, T)> = items
        .into_iter()
        .map(|(whose, item)| {
            let turn = of_sharer.entry(whose).or_default();
            *turn += 1;
            (*turn, item)
        })
        .collect();
    turns.sort_by_key(|(turn, _)| *turn);
    let mut items = turns.into_iter().map(|(_, item)| item);
    (items.by_ref().take(most).collect(), items.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_most_gives_up_until_all_have_as_many() {
        let mut shares = Shares::default();
        assert_eq!(shares.gives_up_for(1), None, "nobody has any");
        shares.take(1, 6);
        assert_eq!((shares.gives_up_for(1), shares.gives_up_for(2)), (None, Some(1)));
        while let Some(whose) = shares.gives_up_for(2) {
            shares.give_back(whose, 1);
            shares.take(2, 1);
        }
        assert_eq!((shares.of(1), shares.of(2)), (3, 3));
        shares.forget(1);
        assert_eq!((shares.gives_up_for(3), shares.all()), (Some(2), 3));
    }

    #[test]
    fn one_has_three_quarters_at_most() {
        let limits = Limits::three_quarters_for_one(512);
        assert_eq!(limits, Limits { all: 512, of_one: 384 });
        assert!(limits.have_room(511, 383) && !limits.have_room(512, 0) && !limits.have_room(384, 384));
    }

    #[test]
    fn after_a_hundred_thousand_sharers_as_much_is_known_as_after_a_thousand() {
        let mut shares = Shares::default();
        for whose in 0..100_000 {
            shares.take(whose, 7);
            shares.refuse(whose, 1);
            shares.give_back(whose, 7);
        }
        assert_eq!((shares.all(), shares.held.len(), shares.refused().len()), (0, 0, MAX_NAMED));
    }

    #[test]
    fn each_has_its_turn() {
        let items = (0..1000).map(|item| (1, item)).chain([(2, 1000), (3, 1001), (2, 1002)]);
        let (chosen, rest) = in_turns(items, 6);
        assert_eq!((&*chosen, rest.len()), (&[0, 1000, 1001, 1, 1002, 2][..], 997));
        assert_eq!(in_turns([(); 0].map(|()| (1, 1)), 10), (Vec::new(), Vec::new()));
    }
}
