//! What was observed of each message, joined to the op that planned it.
//!
//! The network proxy names a message by its connection, the op's final opCount and the FIFO step. Messages come to their end
//! long after the op was posted, so the op's record waits for them.

use std::collections::{HashMap, VecDeque};

use super::flow::{FlowRecord, PeerFlow};
use crate::decode::{ProxyStepEvent, StepMoment};

/// Ops that wait for their messages. A proxy has some hundreds in flight; those of a job that hangs stay.
const MAX_WAITING: usize = 65_536;

/// When a message came how far, on `CLOCK_MONOTONIC` in nanoseconds, as NCCL's proxy saw it. All measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Send: the slot is offered to the GPU. Receive: the proxy takes it up.
    pub start: Option<u64>,
    /// Receive: the network was asked for it.
    pub posted: Option<u64>,
    /// Send: the GPU has filled the slot, and the network is asked to send for the first time (2.27 and later).
    pub ready: Option<u64>,
    /// Send: the network has taken it.
    pub sent: Option<u64>,
    /// Receive: the data is there.
    pub arrived: Option<u64>,
    /// Receive: it is handed to the GPU.
    pub handed: Option<u64>,
    /// Send: the network is done with it. Receive: the GPU has taken it out of the slot.
    pub end: Option<u64>,
    /// Bytes that the network was given, or gave.
    pub bytes: Option<u64>,
}

impl Message {
    fn note(&mut self, moment: StepMoment, ts_ns: u64, bytes: Option<u64>) {
        let place = match moment {
            StepMoment::Start => &mut self.start,
            StepMoment::Posted => &mut self.posted,
            StepMoment::Ready => &mut self.ready,
            StepMoment::Sent => &mut self.sent,
            StepMoment::Arrived => &mut self.arrived,
            StepMoment::Handed => &mut self.handed,
            StepMoment::Stop => &mut self.end,
            StepMoment::Other => return,
        };
        // The proxy repeats a start or a refused send until it succeeds: the first is when it began.
        place.get_or_insert(ts_ns);
        if matches!(moment, StepMoment::Sent | StepMoment::Arrived) {
            self.bytes = bytes;
        }
    }
}

/// What an op on a connection is called by the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StepKey {
    pub(super) tgid: u32,
    pub(super) connection: u64,
    pub(super) op_count: u64,
}

impl StepKey {
    pub(super) fn of_event(event: &ProxyStepEvent) -> Self {
        Self { tgid: event.origin.tgid, connection: event.connection, op_count: event.op_count }
    }
}

/// An op whose messages are on their way.
#[derive(Debug)]
struct Execution {
    record: FlowRecord,
    /// Peers with a proxy that have messages left.
    open_peers: usize,
}

/// The ops whose messages are on their way.
#[derive(Debug, Default)]
pub(super) struct Executions {
    by_number: HashMap<u64, Execution>,
    /// Which op, and which of its peers, a key means: the first that is not complete.
    by_key: HashMap<StepKey, VecDeque<(u64, usize)>>,
    next_number: u64,
    oldest: u64,
}

impl Executions {
    /// Takes a posted op. Gives it back if nothing of it will be measured, and gives out one that has waited too long.
    pub(super) fn begin(&mut self, tgid: u32, mut record: FlowRecord) -> Option<FlowRecord> {
        let slots = record.op.slice_steps.max(1);
        let number = self.next_number;
        let op_count = record.op.op_count;
        let mut open_peers = 0;
        for (index, peer) in record.peers.iter_mut().enumerate().filter(|(_, peer)| peer.has_proxy) {
            let messages = usize::try_from(peer.nsteps.div_ceil(slots)).unwrap_or(usize::MAX);
            if messages == 0 || messages > MAX_MEASURED {
                continue;
            }
            peer.measured = Some(vec![Message::default(); messages]);
            open_peers += 1;
            let key = StepKey { tgid, connection: peer.connection, op_count };
            self.by_key.entry(key).or_default().push_back((number, index));
        }
        if open_peers == 0 {
            return Some(record);
        }
        self.by_number.insert(number, Execution { record, open_peers });
        self.next_number += 1;
        if self.by_number.len() > MAX_WAITING { self.end_oldest() } else { None }
    }

    /// Whether a step of this name belongs to an op that waits.
    pub(super) fn expects(&self, key: &StepKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// Notes what happened. `Ok` with the op's record if that was its last message; `Err` if no op is called so.
    pub(super) fn note(&mut self, event: &ProxyStepEvent) -> Result<Option<FlowRecord>, ()> {
        let key = StepKey::of_event(event);
        let queue = self.by_key.get_mut(&key).ok_or(())?;
        let &(number, peer_index) = queue.front().ok_or(())?;
        let execution = self.by_number.get_mut(&number).ok_or(())?;
        let slots = execution.record.op.slice_steps.max(1);
        // Told for each FIFO step in turn: a message is done with its last, and had every other moment with its first.
        let tells = if event.moment == StepMoment::Stop { slots - 1 } else { 0 };
        if event.is_per_fifo_step && event.step % slots != tells {
            return Ok(None);
        }
        let peer = execution.record.peers.get_mut(peer_index).ok_or(())?;
        let messages = peer.measured.as_mut().ok_or(())?;
        let at = usize::try_from(event.step / slots).map_err(|_| ())?;
        let last = messages.len() - 1;
        let message = messages.get_mut(at).ok_or(())?;
        message.note(event.moment, event.origin.ts_ns, event.bytes);
        // The proxy completes a connection's messages in their order.
        if event.moment != StepMoment::Stop || at != last {
            return Ok(None);
        }
        queue.pop_front();
        if queue.is_empty() {
            self.by_key.remove(&key);
        }
        execution.open_peers -= 1;
        if execution.open_peers > 0 {
            return Ok(None);
        }
        Ok(self.by_number.remove(&number).map(|execution| execution.record))
    }

    /// The session ends: what is still on its way, in the order of posting.
    pub(super) fn drain(&mut self) -> Vec<FlowRecord> {
        self.by_key.clear();
        let mut left: Vec<(u64, Execution)> = self.by_number.drain().collect();
        left.sort_by_key(|(number, _)| *number);
        left.into_iter().map(|(_, execution)| execution.record).collect()
    }

    fn end_oldest(&mut self) -> Option<FlowRecord> {
        let number = (self.oldest..self.next_number).find(|number| self.by_number.contains_key(number))?;
        self.oldest = number + 1;
        let execution = self.by_number.remove(&number)?;
        self.by_key.retain(|_, queue| {
            queue.retain(|(of, _)| *of != number);
            !queue.is_empty()
        });
        Some(execution.record)
    }
}

/// Messages of one op with one peer that are measured; as many as are laid out.
const MAX_MEASURED: usize = 1 << 17;

impl PeerFlow {
    /// Messages that came to their end, and the bytes of those whose size was seen.
    pub fn measured_totals(&self) -> Option<(u64, u64)> {
        let messages = self.measured.as_ref()?;
        let ended = messages.iter().filter(|message| message.end.is_some()).count() as u64;
        Some((ended, messages.iter().filter_map(|message| message.bytes).fold(0, u64::saturating_add)))
    }
}
