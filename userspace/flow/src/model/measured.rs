//! Joins the observed steps of messages to the ops that planned them.
//!
//! The network proxy names a message by its connection, the op's final opCount and the FIFO step. Messages
//! end long after the op was posted, so the op's record waits for them.

use std::collections::VecDeque;

use foldhash::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use super::{
    counters::LeftOut,
    execution::{Execution, StepKey, executing_rank},
    flow::{FlowRecord, PeerFlow, RECORD_BYTES, WORDS_BYTES},
    message::{Measured, Message},
    proxy_ranks::{CommunicatorRank, ProxyRanks},
    sizes::{SendSizes, Size, Sums},
};
use crate::{
    decode::{Origin, ProxyStepEvent, StepMoment},
    schema::Outcome,
};

/// Messages that can be on their way: 128 MiB. A proxy has some thousands in flight, but messages of a job
/// that hangs stay, and a target can claim any number.
const MAX_PENDING: usize = 1 << 20;

/// Ops that can wait until the process that executes them is known. That process takes part in the same
/// collective, so it is not far behind.
const MAX_UNPLACED: usize = 4096;

/// Ranks that a connection's address can stand for: one, unless several processes use the same address.
const MAX_RANKS_OF_CONNECTION: usize = 64;

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

/// The ops whose messages are on their way.
#[derive(Debug, Default)]
pub(super) struct Executions {
    pub(super) by_number: HashMap<u64, Execution>,
    /// Ops of a key, each with the index of the peer that the key stands for. The first op is the one in
    /// progress.
    pub(super) by_key: HashMap<StepKey, VecDeque<(u64, usize)>>,
    sums: Sums,
    pub(super) send_sizes: SendSizes,
    pub(super) sampling: Sampling,
    pub(super) left_out: LeftOut,
    /// Ops whose steps are not wanted and can still come.
    unwanted: HashSet<StepKey>,
    /// opCount of the last unwanted op of which steps came, by connection.
    unwanted_now: HashMap<StepKey, u64>,
    /// When the last message of a connection ended.
    last_ends: HashMap<StepKey, u64>,
    /// Ranks that can serve a connection, by its address in the process that serves it.
    pub(super) elsewhere: HashMap<u64, Vec<CommunicatorRank>>,
    /// Ops with a part that an unknown process executes.
    unplaced: VecDeque<u64>,
    next_number: u64,
    oldest: u64,
    /// Messages of all ops.
    pending: usize,
}

impl Executions {
    /// Returns about how many bytes of memory the ops take.
    pub(super) fn held_bytes(&self) -> usize {
        let words = self.by_key.len()
            + self.unwanted.len()
            + self.unwanted_now.len()
            + self.last_ends.len()
            + self.elsewhere.len()
            + self.unplaced.len()
            + self.sums.len()
            + self.send_sizes.len();
        self.pending * size_of::<Message>() + self.by_number.len() * RECORD_BYTES + words * WORDS_BYTES
    }

    /// Returns the ranks that may execute the op of this step of another process, if the op is one that
    /// `tgid` posted.
    pub(super) fn executors(
        &self,
        tgid: u32,
        step: &ProxyStepEvent,
    ) -> impl Iterator<Item = CommunicatorRank> {
        let ranks = self.elsewhere.get(&step.connection).into_iter().flatten().copied();
        ranks.filter(move |at| {
            let key = StepKey { tgid, elsewhere: Some(*at), ..StepKey::of_event(step) };
            self.by_key.contains_key(&key) || self.unwanted.contains(&key)
        })
    }

    /// Takes a posted op. Gives back the ops that are not measured any further: this one, if it has no
    /// messages or too many, or the oldest ones, to make room. `by`: the record that showed that the op was
    /// posted.
    pub(super) fn begin(
        &mut self,
        by: &Origin,
        mut record: FlowRecord,
        ranks: &ProxyRanks,
    ) -> Vec<FlowRecord> {
        let Origin { tgid, lost, .. } = *by;
        let elsewhere = self.parts_elsewhere(&record, ranks);
        if !self.sampling.takes(&record) {
            self.leave_out(tgid, &mut record);
            return vec![record];
        }
        let messages_of = |peer: &PeerFlow| {
            let messages = if peer.connector.has_proxy { peer.messages(record.op.slice_steps) } else { 0 };
            usize::try_from(messages).unwrap_or(usize::MAX)
        };
        let by_peer: Vec<usize> = record.peers.iter().map(messages_of).collect();
        let messages = by_peer.iter().copied().fold(0, usize::saturating_add);
        if messages == 0 || messages > MAX_PENDING / 8 {
            let unknown = record.peers.iter().any(|peer| peer.connector.has_proxy && peer.nsteps.is_none());
            record.outcome = match messages {
                0 => unknown.then_some(Outcome::MessagesUnknown),
                _ => Some(Outcome::TooManyMessages),
            };
            return vec![record];
        }
        let number = self.next_number;
        self.next_number += 1;
        let mut keys = Vec::new();
        let parts = record.peers.iter_mut().zip(by_peer).enumerate();
        for (index, (peer, messages)) in parts.filter(|(_, (_, messages))| *messages > 0) {
            let key = StepKey::of_part(tgid, record.comm.hash, record.op.op_count, &peer.connector);
            peer.measured = Some(Measured::new(messages));
            self.by_key.entry(key).or_default().push_back((number, index));
            keys.push(key);
        }
        self.pending += messages;
        if elsewhere.iter().any(|(_, lost)| lost.is_none()) {
            self.unplaced.push_back(number);
        }
        let open_peers = keys.len();
        let execution = Execution { record, open_peers, messages, keys, tgid, lost, elsewhere };
        self.by_number.insert(number, execution);
        let mut ended = Vec::new();
        while self.unplaced.len() > MAX_UNPLACED
            && let Some(number) = self.unplaced.pop_front()
        {
            ended.extend(self.end_unplaced(number, by, ranks));
        }
        while self.pending > MAX_PENDING
            && let Some(oldest) = self.end_oldest(by, ranks)
        {
            ended.push(oldest);
        }
        ended
    }

    /// Notes and returns the ranks of other processes that execute parts of the op, with their processes'
    /// losses if known.
    fn parts_elsewhere(
        &mut self,
        record: &FlowRecord,
        ranks: &ProxyRanks,
    ) -> Vec<(CommunicatorRank, Option<u64>)> {
        let mut parts: Vec<(CommunicatorRank, Option<u64>)> = Vec::new();
        for connector in record.peers.iter().map(|peer| &peer.connector).filter(|known| known.has_proxy) {
            let Some(at) = executing_rank(record.comm.hash, connector) else { continue };
            let connection = connector.connection;
            if self.elsewhere.len() < MAX_PENDING || self.elsewhere.contains_key(&connection) {
                let known = self.elsewhere.entry(connection).or_default();
                if !known.contains(&at) && known.len() < MAX_RANKS_OF_CONNECTION {
                    known.push(at);
                }
            }
            if !parts.iter().any(|(other, _)| *other == at) {
                parts.push((at, ranks.lost(&at)));
            }
        }
        parts
    }

    /// Leaves out an op whose messages are not wanted. Its steps come all the same, and must not count as
    /// those of an unknown op.
    fn leave_out(&mut self, tgid: u32, record: &mut FlowRecord) {
        for peer in record.peers.iter().filter(|peer| peer.connector.has_proxy) {
            let messages = peer.messages(record.op.slice_steps);
            if messages == 0 {
                continue;
            }
            self.left_out.ops += u64::from(record.outcome.is_none());
            record.outcome = Some(Outcome::LeftOut);
            self.left_out.messages += messages;
            if self.unwanted.len() < MAX_PENDING {
                let (hash, number) = (record.comm.hash, record.op.op_count);
                self.unwanted.insert(StepKey::of_part(tgid, hash, number, &peer.connector));
            }
        }
    }

    /// Tells whether the step is of an op that is not wanted, and counts it then.
    fn is_unwanted(&mut self, key: &StepKey, event: &ProxyStepEvent) -> bool {
        let number = key.op_count >> 1;
        if !number.is_multiple_of(self.sampling.every.max(1)) || self.unwanted.contains(key) {
            self.left_out.hits += 1;
            // The op is over when the connection's next op begins.
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

    /// Replaces a sum of bytes by the size of the message. Every step of a process must pass here, also the
    /// steps of ops that other processes posted.
    pub(super) fn settle_size(&mut self, event: &mut ProxyStepEvent) {
        if event.moment == StepMoment::Sent
            && let Some(bytes) = self.send_sizes.of_sent(&event.origin)
        {
            event.bytes = Some(bytes);
        }
        if event.bytes_sum.is_some() {
            match self.sums.added(event) {
                Some(Size::This(bytes)) => event.bytes = Some(bytes),
                Some(Size::Before { step, bytes }) => event.bytes_before = Some((step, bytes)),
                None => {}
            }
            event.bytes_sum = None;
        }
    }

    /// Notes a step. `lost`: records of the op's posting process that were lost until now. Gives the op's
    /// record if the step ends its last message, and an error if no op has this key.
    pub(super) fn note(
        &mut self,
        key: StepKey,
        event: &ProxyStepEvent,
        lost: u64,
        ranks: &ProxyRanks,
    ) -> Result<Option<FlowRecord>, ()> {
        let Some(queue) = self.by_key.get_mut(&key) else {
            note_end(&mut self.last_ends, &key, event);
            return if self.is_unwanted(&key, event) { Ok(None) } else { Err(()) };
        };
        let &(number, peer_index) = queue.front().ok_or(())?;
        let execution = self.by_number.get_mut(&number).ok_or(())?;
        let slots = execution.record.op.slice_steps.max(1);
        // NCCL may report each FIFO step in turn. A message ends with its last FIFO step, and reaches every
        // other state with its first.
        let tells = if event.moment == StepMoment::Stop { slots - 1 } else { 0 };
        if event.is_per_fifo_step && event.step % slots != tells {
            return Ok(None);
        }
        let peer = execution.record.peers.get_mut(peer_index).ok_or(())?;
        let measured = peer.measured.as_mut().ok_or(())?;
        if let Some((step, bytes)) = event.bytes_before
            && let Some(before) =
                usize::try_from(step / slots).ok().and_then(|at| measured.seen().get_mut(at))
        {
            before.bytes = Some(bytes);
        }
        let told = usize::try_from(event.step / slots).map_err(|_| ())?;
        let at =
            if event.moment == StepMoment::Stop { measured.stopped(told, event.direction) } else { told };
        let messages = measured.seen();
        let is_last = at + 1 == messages.len();
        let message = messages.get_mut(at).ok_or(())?;
        // If the user's own buffer is sent, the slot's size means something else.
        let bytes = event.bytes.filter(|_| !(event.is_per_fifo_step && execution.record.op.registered));
        message.note(event.moment, event.origin.ts_ns, bytes);
        if measured.depth == 0 {
            // The op's first step with this peer. The proxy serves the ops of a connection one after the
            // other.
            measured.set_depth(event.n_subs, slots);
            let posted = execution.record.posted_at.map(|origin| origin.ts_ns);
            measured.free_since = posted.max(self.last_ends.get(&key.line()).copied());
            peer.proxy_pid = key.elsewhere.and_then(|at| ranks.pid(&at));
        }
        note_end(&mut self.last_ends, &key, event);
        // The proxy completes a connection's messages in their order.
        if event.moment != StepMoment::Stop || !is_last {
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
        let ended = self.end(number);
        Ok(ended.map(|execution| execution.ended(lost, None, ranks)))
    }

    /// Ends the ops that are still on their way as the session ends, in the order of posting.
    pub(super) fn drain(&mut self, lost: impl Fn(u32) -> u64, ranks: &ProxyRanks) -> Vec<FlowRecord> {
        self.by_key.clear();
        self.pending = 0;
        let mut left: Vec<(u64, Execution)> = self.by_number.drain().collect();
        left.sort_by_key(|(number, _)| *number);
        let mut busy = HashSet::default();
        left.into_iter()
            .map(|(_, mut execution)| {
                // An op without a step is the one that its connection waits with, if it is the first there.
                let posted = execution.record.posted_at.map(|origin| origin.ts_ns);
                let slots = execution.record.op.slice_steps;
                let hash = execution.record.comm.hash;
                for peer in &mut execution.record.peers {
                    let line = StepKey::of_part(execution.tgid, hash, 0, &peer.connector);
                    let is_unknown = line.elsewhere.is_some_and(|at| ranks.lost(&at).is_none());
                    let Some(measured) = &mut peer.measured else { continue };
                    if !is_unknown && busy.insert(line) && measured.depth == 0 {
                        measured.set_depth(1, slots);
                        measured.free_since = posted.max(self.last_ends.get(&line).copied());
                    }
                }
                let lost = lost(execution.tgid);
                execution.ended(lost, Some(Outcome::SessionEnded), ranks)
            })
            .collect()
    }

    /// Ends an op that has waited long enough for the process that executes it to become known.
    fn end_unplaced(&mut self, number: u64, by: &Origin, ranks: &ProxyRanks) -> Option<FlowRecord> {
        let execution = self.by_number.get(&number)?;
        let is_unplaced =
            |(at, lost): &(CommunicatorRank, Option<u64>)| lost.is_none() && ranks.lost(at).is_none();
        if !execution.elsewhere.iter().any(is_unplaced) {
            return None;
        }
        self.give_up(number, Outcome::ProxyNotKnown, by, ranks)
    }

    fn end_oldest(&mut self, by: &Origin, ranks: &ProxyRanks) -> Option<FlowRecord> {
        let number = (self.oldest..self.next_number).find(|number| self.by_number.contains_key(number))?;
        self.oldest = number + 1;
        self.give_up(number, Outcome::GivenUp, by, ranks)
    }

    fn give_up(
        &mut self,
        number: u64,
        outcome: Outcome,
        by: &Origin,
        ranks: &ProxyRanks,
    ) -> Option<FlowRecord> {
        let execution = self.end(number)?;
        // The losses of another process since then are not known. The op is incomplete in any case.
        let lost = if execution.tgid == by.tgid { by.lost } else { execution.lost };
        Some(execution.ended(lost, Some(outcome), ranks))
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

/// Notes when a message of a connection ended, also of an op that was posted before the session began or is
/// not wanted: before that the connection was not free for its next op, and the time is no wait of that one.
fn note_end(last_ends: &mut HashMap<StepKey, u64>, key: &StepKey, event: &ProxyStepEvent) {
    let line = key.line();
    if event.moment == StepMoment::Stop && (last_ends.len() < MAX_PENDING || last_ends.contains_key(&line)) {
        last_ends.insert(line, event.origin.ts_ns);
    }
}
