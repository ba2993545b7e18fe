//! Sizes of messages where NCCL does not tell them with the message.
//!
//! 2.16 to 2.19 reset the size of a send before they report the send: the proxy's thread resets the slot's
//! size and then reports the send, with nothing in between. So a size is that of the next send that the
//! thread reports. A pair of size and send counts only if no record can be missing between the two. 2.23 to
//! 2.26 keep a sum of all sizes.

use foldhash::HashMap;

use super::execution::StepKey;
use crate::decode::{BytesSum, Origin, ProxyStepEvent, SendSizeEvent, StepMoment};

/// Threads that are kept. A process has a proxy thread for each communicator; a target can claim any number.
const MAX_THREADS: usize = 1 << 16;

/// Last reports of each thread, by process and thread.
#[derive(Debug, Default)]
pub(super) struct SendSizes(HashMap<(u32, u32), Thread>);

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    /// The last size, and the origin of its record; `None` once a send has taken it.
    size: Option<(Origin, u64)>,
    /// When the last send was told.
    sent_ns: Option<u64>,
}

impl SendSizes {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Keeps a size until its thread reports the send.
    pub(super) fn take(&mut self, size: &SendSizeEvent) {
        let origin = size.origin;
        let key = (origin.tgid, origin.tid);
        if self.0.len() < MAX_THREADS || self.0.contains_key(&key) {
            self.0.entry(key).or_default().size = size.bytes.map(|bytes| (origin, bytes));
        }
    }

    /// Takes the size of the send of this record: the one that its thread reported since the send before.
    /// `None` if there is none, if it came later than the send, or if records of the process were lost in
    /// between. Further FIFO steps of a message have no size.
    pub(super) fn of_sent(&mut self, sent: &Origin) -> Option<u64> {
        let thread = self.0.get_mut(&(sent.tgid, sent.tid))?;
        let before = thread.sent_ns.replace(sent.ts_ns);
        let (told, bytes) = thread.size.take_if(|(told, _)| told.ts_ns <= sent.ts_ns)?;
        let is_since = before.is_none_or(|before| before <= told.ts_ns);
        (is_since && told.lost == sent.lost).then_some(bytes)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(tid: u32, ts_ns: u64, lost: u64) -> Origin {
        Origin { ts_ns, tgid: 10, tid, lost, stack: None }
    }

    fn told(sizes: &mut SendSizes, tid: u32, ts_ns: u64, bytes: u64) {
        sizes.take(&SendSizeEvent { origin: origin(tid, ts_ns, 0), bytes: Some(bytes) });
    }

    #[test]
    fn a_size_is_the_next_send_of_its_thread() {
        let mut sizes = SendSizes::default();
        told(&mut sizes, 1, 10, 700);
        told(&mut sizes, 2, 11, 900);
        assert_eq!(sizes.of_sent(&origin(3, 12, 0)), None, "of another thread");
        assert_eq!(sizes.of_sent(&origin(2, 12, 0)), Some(900));
        assert_eq!(sizes.of_sent(&origin(1, 12, 0)), Some(700));
        assert_eq!(sizes.of_sent(&origin(1, 13, 0)), None, "the second FIFO step of the same message");
        told(&mut sizes, 1, 14, 0);
        assert_eq!(sizes.of_sent(&origin(1, 15, 0)), Some(0), "an empty message is one");
    }

    #[test]
    fn where_something_can_be_missing_there_is_no_size() {
        let mut sizes = SendSizes::default();
        told(&mut sizes, 1, 10, 700);
        assert_eq!(sizes.of_sent(&origin(1, 11, 3)), None, "records were lost in between");
        assert_eq!(sizes.of_sent(&origin(1, 12, 3)), None, "it is not kept for a later send");
        told(&mut sizes, 1, 20, 700);
        sizes.take(&SendSizeEvent { origin: origin(1, 21, 0), bytes: None });
        assert_eq!(sizes.of_sent(&origin(1, 22, 0)), None, "the last one could not be read");
    }

    #[test]
    fn records_that_come_late_join_none_that_is_not_theirs() {
        let mut sizes = SendSizes::default();
        told(&mut sizes, 1, 10, 700);
        assert_eq!(sizes.of_sent(&origin(1, 11, 0)), Some(700));
        // The size of the send at 21 comes after it: it is not that of the one at 31.
        assert_eq!(sizes.of_sent(&origin(1, 21, 0)), None);
        told(&mut sizes, 1, 20, 800);
        assert_eq!(sizes.of_sent(&origin(1, 31, 0)), None);
        // A size whose send has not come yet is kept for it.
        told(&mut sizes, 1, 50, 900);
        assert_eq!(sizes.of_sent(&origin(1, 41, 0)), None);
        assert_eq!(sizes.of_sent(&origin(1, 51, 0)), Some(900));
    }
}
