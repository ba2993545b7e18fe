//! State that the models of a node's processes share. The owner of the sessions owns it too, and passes it to
//! each of their calls.

use std::mem;

use foldhash::HashMap;

use super::{communicator::CommKey, joined_calls::JoinedCalls, proxy_ranks::ProxyRanks};

/// State that the sessions of all processes that are recorded together share.
#[derive(Debug, Default)]
pub struct Node {
    /// Processes of ranks.
    pub proxy_ranks: ProxyRanks,
    /// Calls that wait for their ops, where both are recorded.
    pub calls: JoinedCalls,
    pub(super) instances: Instances,
}

/// Pairs of hash and rank that a generation of counts remembers; there are two generations. A hash is of 64
/// bits, so one that comes again after so many others is no split of the same parent.
const MAX_COUNTS: usize = 4096;

/// Instance numbers of communicators with the same hash and rank: two splits of one parent with one colour
/// have the same hash from 2.18 to 2.23, and before 2.18 there are no hashes.
#[derive(Debug, Default)]
pub(super) struct Instances {
    counts: HashMap<(Option<u64>, i32), u32>,
    /// Counts of the generation before. An entry that is not counted again is forgotten with the generation.
    earlier: HashMap<(Option<u64>, i32), u32>,
    /// Numbers of the communicators of processes that have not ended: a communicator's ops and its calls have
    /// one number.
    given: HashMap<CommKey, u32>,
}

impl Instances {
    /// Numbers a communicator that was not seen before.
    pub(super) fn next(&mut self, hash: Option<u64>, rank: i32) -> u32 {
        let key = (hash, rank);
        let number = self.counts.get(&key).or_else(|| self.earlier.get(&key)).copied().unwrap_or(0);
        if self.counts.len() >= MAX_COUNTS && !self.counts.contains_key(&key) {
            self.earlier = mem::take(&mut self.counts);
        }
        self.counts.insert(key, number.saturating_add(1));
        number
    }

    /// Returns the number of this communicator, which gets one if it has none yet.
    pub(super) fn of(&mut self, key: CommKey) -> u32 {
        if let Some(known) = self.given.get(&key) {
            return *known;
        }
        let new = self.next(key.hash, key.rank);
        self.given.insert(key, new);
        new
    }

    /// Forgets a communicator that is no more, or of which nothing more is seen.
    pub(super) fn forget(&mut self, key: &CommKey) {
        self.given.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_while_they_are_remembered_and_what_is_remembered_is_bounded() {
        let mut instances = Instances::default();
        let key = |tgid, hash| CommKey { tgid, pointer: 1, hash: Some(hash), rank: 0 };
        assert_eq!([instances.of(key(1, 7)), instances.of(key(2, 7)), instances.of(key(1, 7))], [0, 1, 0]);
        for tgid in 10..100_010 {
            let key = key(tgid, u64::from(tgid) << 8);
            assert_eq!(instances.of(key), 0);
            instances.forget(&key);
            assert!(instances.counts.len() <= MAX_COUNTS && instances.earlier.len() <= MAX_COUNTS);
            // Ranks without a hash come again and again between them.
            if tgid % 1000 == 0 {
                assert_eq!(instances.next(None, 3), (tgid - 10) / 1000);
            }
        }
        assert_eq!(instances.given.len(), 2, "of processes that have not ended");
        assert_eq!(instances.of(key(1, 7)), 0);
    }
}
