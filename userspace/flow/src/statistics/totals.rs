//! What is known of a session at a moment.

use std::collections::{BTreeMap, HashMap};

use super::rank::RankStatistics;
use crate::schema::RankKey;

/// What came from a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessStatistics {
    /// Records that came to be decoded.
    pub records: u64,
    /// Records that are missing, in the kernel or since, as far as later records or the end of the session
    /// told.
    pub lost: u64,
}

/// Statistics of a session, from its beginning.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    pub(super) ranks: BTreeMap<RankKey, RankStatistics>,
    pub(super) folded: RankStatistics,
    pub(super) folded_ranks: usize,
    pub(super) left_out: u64,
    pub(super) processes: BTreeMap<u32, ProcessStatistics>,
    pub(super) undecodable: u64,
    /// By process, communicator and rank: told before an op is complete.
    pub(super) launched: HashMap<(u32, Option<u64>, i32), u64>,
}

impl Statistics {
    /// The ranks that are kept apart.
    pub fn ranks(&self) -> &BTreeMap<RankKey, RankStatistics> {
        &self.ranks
    }

    /// What the ranks beyond the number that is kept apart did together.
    pub fn folded(&self) -> &RankStatistics {
        &self.folded
    }

    /// How many those are.
    pub fn folded_ranks(&self) -> usize {
        self.folded_ranks
    }

    /// Records of ranks that are not even counted together with others.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    pub fn processes(&self) -> &BTreeMap<u32, ProcessStatistics> {
        &self.processes
    }

    /// Records that could not be understood.
    pub fn undecodable(&self) -> u64 {
        self.undecodable
    }

    /// NCCL's own count of the collectives that this rank launched, when a record last told it.
    pub fn launched(&self, key: &RankKey) -> Option<u64> {
        self.launched.get(&(key.pid, key.hash, key.rank)).copied()
    }
}
