//! Which ops' messages are measured, where not all are wanted.

use serde::{Deserialize, Serialize};

use super::flow::FlowRecord;

/// What an op must be for its messages to be measured. The rest is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampling {
    /// One op of so many, by NCCL's own count: the same collectives on all ranks.
    pub every: u64,
    /// A bit for each channel.
    pub channels: u64,
    /// The call has at least so many bytes, or it is not known how many.
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
