//! Sizes of messages where NCCL keeps only a sum of them.

use foldhash::HashMap;

use super::step_key::StepKey;
use crate::decode::{BytesSum, ProxyStepEvent, StepMoment};

/// Places of a process that are kept. NCCL has one for each op that is on its way; a target can claim any
/// number.
const MAX_PLACES: usize = 1 << 20;

/// Running sums of bytes, by process and place in its memory: 2.23 to 2.26 add the size of every message to a
/// sum that is never reset, also across ops that take the same place.
#[derive(Debug, Default)]
pub(super) struct Sums(HashMap<(u32, u64), Place>);

#[derive(Clone, Copy, Debug)]
struct Place {
    bytes: u64,
    /// Records of the process that were lost before this sum was read.
    lost: u64,
    /// Message that the sum lacks: the next record of the op shows its size.
    lacks: Option<(StepKey, u64)>,
}

/// The size of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// Size of the message that the record is of.
    This(u64),
    /// Size of an earlier message of the same op, named by its FIFO step.
    Before { step: u64, bytes: u64 },
}

impl Sums {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the message that was added since the record before, with its size; `None` if that is not
    /// known, or if records of the process were lost since.
    pub(super) fn added(&mut self, event: &ProxyStepEvent) -> Option<Size> {
        let BytesSum { place, bytes, lacks_this } = event.bytes_sum?;
        let key = (event.origin.tgid, place);
        let tells = matches!(event.moment, StepMoment::Sent | StepMoment::Arrived | StepMoment::Stop);
        if !tells || (self.0.len() >= MAX_PLACES && !self.0.contains_key(&key)) {
            return None;
        }
        let of = StepKey::of_event(event);
        let lacks = lacks_this.then_some((of, event.step));
        let now = Place { bytes, lost: event.origin.lost, lacks };
        let before = self.0.insert(key, now).filter(|before| before.lost == now.lost)?;
        let added = bytes.checked_sub(before.bytes)?;
        match before.lacks {
            Some((op, step)) => (op == of).then_some(Size::Before { step, bytes: added }),
            None if event.moment == StepMoment::Stop || lacks_this => None,
            None => Some(Size::This(added)),
        }
    }
}
