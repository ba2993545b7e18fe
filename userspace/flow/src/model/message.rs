//! Messages as they were observed, and the waits that follow from that.

use super::transfers::Transfer;
use crate::{
    decode::StepMoment,
    schema::{Wait, WaitTimes},
};
use nccl_library::nccl::{Direction, FIFO_STEPS};

/// `NCCL_SHARED_STEPS`: FIFO steps that all ops that are taken together may use (src/include/proxy.h,
/// `maxDepth` in src/transport/net.cc).
const NCCL_SHARED_STEPS: u64 = 16;

/// Moments of a message, on `CLOCK_MONOTONIC` in nanoseconds, as NCCL's proxy saw them. All are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// In the order of [`StepMoment`].
    pub moments: [Option<u64>; StepMoment::Other as usize],
    /// Bytes that the network was given, or gave.
    pub bytes: Option<u64>,
}

impl Message {
    /// Returns when this was seen of the message.
    pub fn at(&self, moment: StepMoment) -> Option<u64> {
        self.moments.get(moment as usize).copied().flatten()
    }

    pub(super) fn note(&mut self, moment: StepMoment, ts_ns: u64, bytes: Option<u64>) {
        let Some(place) = self.moments.get_mut(moment as usize) else { return };
        // The proxy repeats a refused send until it succeeds: the first is when it began.
        place.get_or_insert(ts_ns);
        if matches!(moment, StepMoment::Sent | StepMoment::Arrived) {
            self.bytes = bytes;
        }
    }
}

/// All messages of an op with one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Messages in the order of their steps. Empty until something is seen of one: ops wait for long, and a
    /// host posts them far ahead.
    pub messages: Vec<Message>,
    /// Number of the messages, also while `messages` is empty.
    pub count: usize,
    /// When the connection was free for the op: the op was posted, and the op before it on the connection was
    /// done.
    pub free_since: Option<u64>,
    /// Messages that can be under way at a time; 0 until that is known.
    pub depth: usize,
    /// Layout of the messages, once it was needed; else empty.
    pub layout: Vec<Transfer>,
}

impl Measured {
    /// Makes the state of `count` messages of which nothing was seen yet.
    pub(super) fn new(count: usize) -> Self {
        Self { count, ..Self::default() }
    }

    /// Returns the messages to note something that is seen of one.
    pub(super) fn seen(&mut self) -> &mut [Message] {
        if self.messages.is_empty() {
            self.messages.resize(self.count, Message::default());
        }
        &mut self.messages
    }

    /// Returns what was seen of a message; `None`: there is no message of this index.
    pub fn message(&self, index: usize) -> Option<Message> {
        let seen = self.messages.get(index).copied();
        seen.or_else(|| (index < self.count).then(Message::default))
    }

    /// Returns the index of the message that stops, where NCCL tells the index `told`. For all receives that
    /// the GPU has taken since the proxy looked last, 2.24 to 2.26 tell the first of them (`doneStepId` in
    /// src/transport/net.cc, recvProxyProgress); they stop in their order.
    pub(super) fn stopped(&self, told: usize, direction: Direction) -> usize {
        let has_stopped = |message: &&Message| message.at(StepMoment::Stop).is_some();
        match direction {
            Direction::Recv => told + self.messages.iter().skip(told).take_while(has_stopped).count(),
            Direction::Send => told,
        }
    }

    /// Tells whether nothing was seen of any message.
    pub(super) fn is_unseen(&self) -> bool {
        self.messages.iter().all(|message| *message == Message::default())
    }

    /// Sets the depth: ops of `n_subs` connections are taken together, and a message takes `slots` FIFO
    /// steps.
    pub(super) fn set_depth(&mut self, n_subs: u64, slots: u64) {
        let steps = FIFO_STEPS.min(NCCL_SHARED_STEPS / n_subs.max(1));
        self.depth = usize::try_from(steps.div_ceil(slots.max(1))).unwrap_or(1).max(1);
    }

    /// Derives since when the slot of this message was free, so that the message could begin. The proxy takes
    /// it up in its next round.
    pub fn slot_free(&self, index: usize) -> Option<u64> {
        match index.checked_sub(self.depth) {
            _ if self.depth == 0 => None,
            Some(before) => self.messages.get(before)?.at(StepMoment::Stop),
            None => self.free_since,
        }
    }

    /// Returns how many messages came to their end, and the bytes of those whose size was seen.
    pub fn totals(&self) -> (u64, u64) {
        let ended =
            self.messages.iter().filter(|message| message.at(StepMoment::Stop).is_some()).count() as u64;
        let bytes = self.messages.iter().filter_map(|message| message.bytes);
        (ended, bytes.fold(0, u64::saturating_add))
    }
}

/// Derives how long a message waited; `slot_free`: [`Measured::slot_free`], used where the start itself was
/// not measured.
pub(super) fn waits(direction: Direction, message: &Message, slot_free: Option<u64>) -> WaitTimes {
    let between = |from: Option<u64>, to: Option<u64>| Some(to?.saturating_sub(from?));
    let [start, posted, ready, sent, arrived, handed, end] = message.moments;
    let mut waits = WaitTimes::default();
    match direction {
        Direction::Send => {
            let start = start.or(slot_free);
            waits[Wait::GpuReady as usize] = between(start, ready);
            waits[Wait::PeerBuffer as usize] = between(ready, sent);
            waits[Wait::GpuReadyOrPeerBuffer as usize] = between(start, sent).filter(|_| ready.is_none());
            waits[Wait::Network as usize] = between(sent, end);
        }
        Direction::Recv => {
            waits[Wait::Network as usize] = between(posted.or(slot_free), arrived);
            waits[Wait::Flush as usize] = between(arrived, handed);
            waits[Wait::GpuConsume as usize] = between(handed, end);
            waits[Wait::FlushOrGpuConsume as usize] = between(arrived, end).filter(|_| handed.is_none());
        }
    }
    waits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::ops::message;
    use StepMoment::{Arrived, Ready, Sent, Start, Stop};

    #[test]
    fn slots_are_free_when_the_message_before_in_them_is_done() {
        let mut measured = Measured { free_since: Some(5), ..Measured::new(6) };
        assert_eq!(measured.slot_free(0), None, "nothing was seen of it");
        measured.set_depth(1, 2);
        for (message, end) in measured.seen().iter_mut().zip([10, 20, 30]) {
            message.note(Stop, end, None);
        }
        let free: Vec<Option<u64>> = (0..6).map(|index| measured.slot_free(index)).collect();
        assert_eq!(free, [Some(5), Some(5), Some(5), Some(5), Some(10), Some(20)]);
        measured.set_depth(8, 1);
        assert_eq!(measured.slot_free(2), Some(10));
    }

    #[test]
    fn receives_that_stop_under_one_number_stop_in_their_order() {
        let mut measured = Measured::new(4);
        for (told, stops) in [(0, 0), (1, 1), (1, 2), (3, 3)] {
            assert_eq!(measured.stopped(told, Direction::Recv), stops);
            assert_eq!(measured.stopped(told, Direction::Send), told);
            measured.seen()[stops].note(Stop, 1, None);
        }
        assert_eq!(measured.stopped(2, Direction::Recv), 4, "there are no more");
    }

    #[test]
    fn waits_are_told_apart_as_far_as_was_measured() {
        let sent = [(Sent, 30), (Stop, 45)];
        let found = waits(Direction::Send, &message(&sent, None), Some(10));
        assert_eq!(
            (found[Wait::GpuReady as usize], found[Wait::GpuReadyOrPeerBuffer as usize]),
            (None, Some(20))
        );
        let ready = [(Start, 11), (Ready, 25), (Sent, 30), (Stop, 45)];
        let found = waits(Direction::Send, &message(&ready, None), Some(10));
        assert_eq!(
            (
                found[Wait::GpuReady as usize],
                found[Wait::PeerBuffer as usize],
                found[Wait::GpuReadyOrPeerBuffer as usize]
            ),
            (Some(14), Some(5), None)
        );
        assert_eq!(found[Wait::Network as usize], Some(15));
        let arrived = [(Arrived, 30), (Stop, 45)];
        let found = waits(Direction::Recv, &message(&arrived, None), None);
        assert_eq!(
            (
                found[Wait::Network as usize],
                found[Wait::GpuConsume as usize],
                found[Wait::FlushOrGpuConsume as usize]
            ),
            (None, None, Some(15))
        );
    }
}
