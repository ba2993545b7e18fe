//! Selection of the ops whose messages are measured, where not all are wanted.

use serde::{Deserialize, Serialize};

use super::flow::FlowRecord;

/// Conditions on an op for its messages to be measured. Other ops are only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampling {
    /// Distance of measured ops, by NCCL's own count: every op if 1, every tenth if 10. They are the same
    /// collectives on all ranks.
    pub every: u64,
    /// Mask of the measured channels, a bit for each.
    pub channels: u64,
    /// Least bytes of a call; a call whose size is not known is measured, too.
    pub min_bytes: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { every: 1, channels: u64::MAX, min_bytes: 0 }
    }
}

impl Sampling {
    pub fn takes(&self, record: &FlowRecord) -> bool {
        let number = record.op.op_count >> 1;
        let on_channel =
            1u64.checked_shl(record.op.channel).is_none_or(|channel| self.channels & channel != 0);
        number.is_multiple_of(self.every.max(1))
            && on_channel
            && record.call_bytes().is_none_or(|bytes| bytes >= self.min_bytes)
    }
}
