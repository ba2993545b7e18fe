//! What the models of a node's processes share. Whoever has the sessions has it too, and passes it to each of
//! their calls.

use foldhash::HashMap;

use super::{communicator::CommKey, joined_calls::JoinedCalls, proxy_ranks::ProxyRanks};

/// What the sessions of all processes that are recorded together have in common.
#[derive(Debug, Default)]
pub struct Node {
    /// Which process has which rank.
    pub proxy_ranks: ProxyRanks,
    /// Calls that wait for their ops, where both are recorded.
    pub calls: JoinedCalls,
    pub(super) instances: Instances,
}

/// How many communicators of one hash and rank there were: two splits of one parent with one colour have the
/// same hash from 2.18 to 2.23, and before 2.18 there are no hashes.
#[derive(Debug, Default)]
pub(super) struct Instances {
    counts: HashMap<(Option<u64>, i32), u32>,
    /// Those of processes that have not ended: a communicator's ops and its calls have one number.
    given: HashMap<CommKey, u32>,
}

impl Instances {
    /// The number of a communicator that was not seen before.
    pub(super) fn next(&mut self, hash: Option<u64>, rank: i32) -> u32 {
        let count = self.counts.entry((hash, rank)).or_insert(0);
        *count += 1;
        *count - 1
    }

    /// The number of this communicator.
    pub(super) fn of(&mut self, key: CommKey) -> u32 {
        if let Some(known) = self.given.get(&key) {
            return *known;
        }
        let new = self.next(key.hash, key.rank);
        self.given.insert(key, new);
        new
    }

    /// The communicator is no more, or nothing more is seen of it.
    pub(super) fn forget(&mut self, key: &CommKey) {
        self.given.remove(key);
    }
}
