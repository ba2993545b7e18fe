//! Amounts that a recording has.

use serde::{Deserialize, Serialize};

/// Amounts that were written; `recording` of `session.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordingTotals {
    pub bytes: u64,
    pub records: u64,
    pub blocks: u64,
    pub segments: u64,
    /// Records that could not be written.
    pub lost: u64,
    /// Segments and records that were removed again, to make room or for their age. `bytes`, `records`,
    /// `blocks` and `segments` count them, too.
    pub removed_segments: u64,
    pub removed_records: u64,
    /// Number of removed records in blocks that later records need.
    pub removed_lasting: u64,
}
