//! Sizes of messages where NCCL tells a sum of them.

use std::collections::HashMap;

use crate::decode::{ProxyStepEvent, StepMoment};

/// Places of a process that are kept. NCCL has one for each op that is on its way; a target can claim any number.
const MAX_PLACES: usize = 1 << 20;

/// Sums of bytes by where they stand: 2.23 to 2.26 add every message to one that is never reset, also across ops that take the same place.
#[derive(Debug, Default)]
pub(super) struct Sums(HashMap<(u32, u64), (u64, u64)>);

impl Sums {
    /// What was added since the message before; nothing if that is not known, or records of the process were lost since.
    pub(super) fn added(&mut self, event: &ProxyStepEvent) -> Option<u64> {
        let (place, sum) = event.bytes_sum?;
        let key = (event.origin.tgid, place);
        if !matches!(event.moment, StepMoment::Sent | StepMoment::Arrived)
            || (self.0.len() >= MAX_PLACES && !self.0.contains_key(&key))
        {
            return None;
        }
        let (before, lost) = self.0.insert(key, (sum, event.origin.lost))?;
        if lost == event.origin.lost { sum.checked_sub(before) } else { None }
    }
}
