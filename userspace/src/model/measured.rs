//! What was observed of each message, joined to the op that planned it.
//!
//! The network proxy names a message by its connection, the op's final opCount and the FIFO step. Messages come to their end
//! long after the op was posted, so the op's record waits for them.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{
    agreement::{self, Outcome},
    flow::{FlowRecord, PeerFlow},
    message::Measured,
    sampling::Sampling,
};
use crate::decode::{Origin, ProxyStepEvent, StepMoment};

/// Messages of ops that are on their way: 128 MiB. A proxy has some thousands in flight; those of a job that hangs stay, and a
/// target can claim any number.
const MAX_PENDING: usize = 1 << 20;

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

    /// Process and connection.
    fn line(&self) -> (u32, u64) {
        (self.tgid, self.connection)
    }
}

/// An op whose messages are on their way.
#[derive(Debug)]
struct Execution {
    record: FlowRecord,
    /// Peers with a proxy that have messages left.
    open_peers: usize,
    /// Messages of all its peers.
    messages: usize,
    keys: Vec<StepKey>,
    tgid: u32,
    /// Records of the process that were lost before it began.
    lost: u64,
}

impl Execution {
    /// It ends, for this reason or because all of it was measured, after so many records of its process were lost.
    fn ended(self, lost: u64, outcome: Option<Outcome>) -> FlowRecord {
        let mut record = self.record;
        record.incomplete |= self.lost != lost;
        record.outcome = Some(match outcome {
            None => agreement::of_whole(&record),
            Some(_) if record.incomplete => Outcome::RecordsLost,
            Some(outcome) => outcome,
        });
        record
    }
}

/// Sums of bytes by where they stand: 2.23 to 2.26 add every message to one that is never reset, also across ops that take the same place.
#[derive(Debug, Default)]
struct Sums(HashMap<(u32, u64), (u64, u64)>);

impl Sums {
    /// What was added since the message before; nothing if that is not known, or records of the process were lost since.
    fn added(&mut self, event: &ProxyStepEvent) -> Option<u64> {
        let (place, sum) = event.bytes_sum?;
        let key = (event.origin.tgid, place);
        if !matches!(event.moment, StepMoment::Sent | StepMoment::Arrived)
            || (self.0.len() >= MAX_PENDING && !self.0.contains_key(&key))
        {
            return None;
        }
        let (before, lost) = self.0.insert(key, (sum, event.origin.lost))?;
        if lost == event.origin.lost { sum.checked_sub(before) } else { None }
    }
}

/// What was not measured because it was not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LeftOut {
    /// Ops, each channel counting.
    pub ops: u64,
    /// Messages of theirs.
    pub messages: u64,
    /// Steps of theirs that came nevertheless.
    pub hits: u64,
}

impl LeftOut {
    /// Adds those of another session.
    pub fn add(&mut self, other: &Self) {
        let Self { ops, messages, hits } = other;
        self.ops += ops;
        self.messages += messages;
        self.hits += hits;
    }
}

/// The ops whose messages are on their way.
#[derive(Debug, Default)]
pub(super) struct Executions {
    by_number: HashMap<u64, Execution>,
    /// Which op, and which of its peers, a key means: the first that is not complete.
    by_key: HashMap<StepKey, VecDeque<(u64, usize)>>,
    sums: Sums,
    sampling: Sampling,
    left_out: LeftOut,
    /// Ops that are not wanted and whose steps can come.
    unwanted: HashSet<StepKey>,
    /// By connection: of which of them steps came last.
    unwanted_now: HashMap<(u32, u64), u64>,
    /// When the last message of a connection that came to its end did.
    last_ends: HashMap<(u32, u64), u64>,
    next_number: u64,
    oldest: u64,
    /// Messages of all ops.
    pending: usize,
}

impl Executions {
    pub(super) fn new(sampling: Sampling) -> Self {
        Self { sampling, ..Self::default() }
    }

    /// Takes a posted op. Gives back what will not be measured any further: this one, if it has no messages or too many, or
    /// the oldest ones, to make room. `by`: the record because of which that is known.
    pub(super) fn begin(&mut self, by: &Origin, mut record: FlowRecord) -> Vec<FlowRecord> {
        let Origin { tgid, lost, .. } = *by;
        if !self.sampling.takes(&record) {
            self.leave_out(tgid, &mut record);
            return vec![record];
        }
        let slots = record.op.slice_steps.max(1);
        let messages_of =
            |peer: &PeerFlow| usize::try_from(peer.nsteps.unwrap_or(0).div_ceil(slots)).unwrap_or(usize::MAX);
        let with_proxy = |peer: &&mut PeerFlow| peer.has_proxy && messages_of(peer) > 0;
        let messages = record.peers.iter_mut().filter(with_proxy).map(|peer| messages_of(peer));
        let messages = messages.fold(0usize, usize::saturating_add);
        if messages == 0 || messages > MAX_PENDING / 8 {
            let unknown = record.peers.iter().any(|peer| peer.has_proxy && peer.nsteps.is_none());
            record.outcome = match messages {
                0 => unknown.then_some(Outcome::MessagesUnknown),
                _ => Some(Outcome::TooManyMessages),
            };
            return vec![record];
        }
        let number = self.next_number;
        self.next_number += 1;
        let op_count = record.op.op_count;
        let mut keys = Vec::new();
        for (index, peer) in record.peers.iter_mut().enumerate() {
            if peer.has_proxy && messages_of(peer) > 0 {
                peer.measured = Some(Measured::new(messages_of(peer)));
                let key = StepKey { tgid, connection: peer.connection, op_count };
                self.by_key.entry(key).or_default().push_back((number, index));
                keys.push(key);
            }
        }
        self.pending += messages;
        self.by_number
            .insert(number, Execution { record, open_peers: keys.len(), messages, keys, tgid, lost });
        let mut ended = Vec::new();
        while self.pending > MAX_PENDING
            && let Some(oldest) = self.end_oldest(by)
        {
            ended.push(oldest);
        }
        ended
    }

    /// Its messages are not wanted. Their steps come nevertheless, and are told from those of unknown ops.
    fn leave_out(&mut self, tgid: u32, record: &mut FlowRecord) {
        let slots = record.op.slice_steps.max(1);
        for peer in record.peers.iter().filter(|peer| peer.has_proxy) {
            let messages = peer.nsteps.unwrap_or(0).div_ceil(slots);
            if messages == 0 {
                continue;
            }
            self.left_out.ops += u64::from(record.outcome.is_none());
            record.outcome = Some(Outcome::LeftOut);
            self.left_out.messages += messages;
            if self.unwanted.len() < MAX_PENDING {
                let key = StepKey { tgid, connection: peer.connection, op_count: record.op.op_count };
                self.unwanted.insert(key);
            }
        }
    }

    /// Counts the step if it is of an op that is not wanted.
    fn is_unwanted(&mut self, key: &StepKey, event: &ProxyStepEvent) -> bool {
        let number = key.op_count >> 1;
        if !number.is_multiple_of(self.sampling.every.max(1)) || self.unwanted.contains(key) {
            self.left_out.hits += 1;
            // Which of its steps is the last is not kept: the next op of the connection ends it.
            let line = key.line();
            if let Some(before) = self.unwanted_now.insert(line, event.op_count)
                && before != event.op_count
            {
                self.unwanted.remove(&StepKey { op_count: before, ..*key });
            }
            return true;
        }
        false
    }

    /// What was not wanted.
    pub(super) fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// Whether a step of this name belongs to an op that waits.
    pub(super) fn expects(&self, key: &StepKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// Notes what happened. `Ok` with the op's record if that was its last message; `Err` if no op is called so.
    pub(super) fn note(&mut self, event: &ProxyStepEvent) -> Result<Option<FlowRecord>, ()> {
        let added = self.sums.added(event);
        let key = StepKey::of_event(event);
        if !self.by_key.contains_key(&key) && self.is_unwanted(&key, event) {
            return Ok(None);
        }
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
        let measured = peer.measured.as_mut().ok_or(())?;
        let at = usize::try_from(event.step / slots).map_err(|_| ())?;
        let last = measured.messages.len() - 1;
        let message = measured.messages.get_mut(at).ok_or(())?;
        // The slots' sizes are of other things where the user's own buffer is sent.
        let of_slot = event.bytes.filter(|_| !(event.is_per_fifo_step && execution.record.op.registered));
        let bytes = if event.bytes_sum.is_some() { added } else { of_slot };
        message.note(event.moment, event.origin.ts_ns, bytes);
        let ends = &mut self.last_ends;
        if measured.depth == 0 {
            // The first that is seen of it. The proxy serves the ops of a connection one after the other.
            measured.set_depth(event.n_subs, slots);
            let posted = execution.record.posted_at.map(|origin| origin.ts_ns);
            measured.free_since = posted.max(ends.get(&key.line()).copied());
        }
        if event.moment == StepMoment::Stop && (ends.len() < MAX_PENDING || ends.contains_key(&key.line())) {
            ends.insert(key.line(), event.origin.ts_ns);
        }
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
        Ok(self.end(number).map(|execution| execution.ended(event.origin.lost, None)))
    }

    /// The session ends: what is still on its way, in the order of posting.
    pub(super) fn drain(&mut self, lost: impl Fn(u32) -> u64) -> Vec<FlowRecord> {
        self.by_key.clear();
        self.pending = 0;
        let mut left: Vec<(u64, Execution)> = self.by_number.drain().collect();
        left.sort_by_key(|(number, _)| *number);
        let mut busy = HashSet::new();
        left.into_iter()
            .map(|(_, mut execution)| {
                // An op that nothing was seen of stands still if no other is before it on the connection.
                let posted = execution.record.posted_at.map(|origin| origin.ts_ns);
                let slots = execution.record.op.slice_steps;
                for peer in &mut execution.record.peers {
                    let Some(measured) = &mut peer.measured else { continue };
                    let line = (execution.tgid, peer.connection);
                    if busy.insert(line) && measured.depth == 0 {
                        measured.set_depth(1, slots);
                        measured.free_since = posted.max(self.last_ends.get(&line).copied());
                    }
                }
                let lost = lost(execution.tgid);
                execution.ended(lost, Some(Outcome::SessionEnded))
            })
            .collect()
    }

    fn end_oldest(&mut self, by: &Origin) -> Option<FlowRecord> {
        let number = (self.oldest..self.next_number).find(|number| self.by_number.contains_key(number))?;
        self.oldest = number + 1;
        let oldest = self.end(number)?;
        // Of another process it is not known what was lost since, but it is not measured to its end either.
        let lost = if oldest.tgid == by.tgid { by.lost } else { oldest.lost };
        Some(oldest.ended(lost, Some(Outcome::GivenUp)))
    }

    fn end(&mut self, number: u64) -> Option<Execution> {
        let execution = self.by_number.remove(&number)?;
        self.pending = self.pending.saturating_sub(execution.messages);
        for key in &execution.keys {
            if let Some(queue) = self.by_key.get_mut(key) {
                queue.retain(|(of, _)| *of != number);
                if queue.is_empty() {
                    self.by_key.remove(key);
                }
            }
        }
        Some(execution)
    }
}
