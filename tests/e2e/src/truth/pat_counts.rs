//! What `tests/patterns --pat` says: how many messages of PAT a library itself counts for each peer.

use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use crate::json_lines;

/// One op.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PatCount {
    /// As `ncclPattern_t` has it: `PatUp` or `PatDown`.
    pub pattern: String,
    pub ranks: u64,
    pub rank: u64,
    /// Ranks of each node.
    pub local_ranks: u64,
    pub chunk_size: u64,
    /// Bytes of all ranks on the channel.
    pub nbytes: u64,
    /// Whether it sends, the peer, and the messages.
    pub calls: Vec<(bool, u64, u64)>,
}

/// Every op.
pub fn read(path: &Path) -> Result<Vec<PatCount>> {
    json_lines::read(path)
}
