//! Statistics of a session at a moment.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::rank::RankStatistics;
use crate::schema::RankKey;

/// Records of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessStatistics {
    /// Records that came to be decoded.
    pub records: u64,
    /// Records that are missing, lost in the kernel or since, as far as later records or the end of the
    /// session told.
    pub lost: u64,
}

/// Statistics of a session, from its beginning.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Ranks that are kept apart.
    pub ranks: BTreeMap<RankKey, Arc<RankStatistics>>,
    /// Statistics of all ranks beyond the number that is kept apart, together.
    pub folded: RankStatistics,
    /// Number of those ranks.
    pub folded_ranks: usize,
    /// Number of those ranks by process, for processes that go on.
    pub folded_by_process: BTreeMap<u32, usize>,
    /// Records of ranks that are not even counted together with others.
    pub left_out: u64,
    pub processes: BTreeMap<u32, ProcessStatistics>,
    /// Records of ranks beyond the number of which launches are kept.
    pub launched_left_out: u64,
    /// Records that could not be understood.
    pub undecodable: u64,
    /// Records that are in the recording and not counted here yet.
    pub behind: u64,
    /// Launched collectives by process, `commHash` and rank: records tell them before an op is complete.
    pub(super) launched: HashMap<(u32, Option<u64>, i32), u64>,
}

impl Statistics {
    /// Returns NCCL's own count of the collectives that this rank launched, as a record last told it.
    pub fn launched(&self, key: &RankKey) -> Option<u64> {
        self.launched.get(&(key.pid, key.hash, key.rank)).copied()
    }
}
