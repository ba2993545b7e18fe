//! Finds the planned op that a post pass is of.
//!
//! NCCL copies the planned op into a queue and posts the copy, which has another address and the final
//! opCount. On each channel of a communicator NCCL posts in the order of planning, so the first planned op
//! that looks the same is the one that was posted.

use std::collections::VecDeque;

use foldhash::HashMap;

use super::flow::{FlowRecord, RECORD_BYTES};
use crate::decode::{ProxyOp, ProxyOpEvent};

/// Planned ops of a channel that can wait for their post pass. A plan that is never launched (an aborted
/// group, a captured graph that is thrown away) leaves some behind.
const MAX_WAITING: usize = 8192;

/// Channels that ops wait on. NCCL has 64 at most (`MAXCHANNELS`, 2.25 and later).
const MAX_CHANNELS: usize = 256;

/// Posted ops that are remembered. NCCL reuses the memory of its copies, so there are few addresses.
const MAX_POSTED: usize = 65_536;

/// Planned ops that wait, and posted ones that a CUDA graph may post again.
#[derive(Debug, Default)]
pub(super) struct PostMatcher {
    waiting: HashMap<u32, VecDeque<FlowRecord>>,
    /// Final number of the last collective that was joined, less our number of it. Both grow by one with each
    /// collective, so the difference stays. It tells which of several ops that look alike was posted.
    offset: Option<i64>,
    /// Posted ops, by the address of NCCL's copy.
    posted: HashMap<u64, FlowRecord>,
}

/// The op that a post pass is of.
#[derive(Debug)]
pub(super) enum Matched {
    /// Planned op that waited for its post pass.
    Planned(Box<FlowRecord>),
    /// Captured op that a graph posts again.
    Replay(Box<FlowRecord>),
    /// Op whose plan pass was not seen.
    Unknown,
}

impl PostMatcher {
    /// Keeps a planned op until it is posted. Gives back an op for which there is no room: the one that has
    /// waited longest on the channel, or this one if there are too many channels.
    pub(super) fn wait(&mut self, record: FlowRecord) -> Option<FlowRecord> {
        if self.waiting.len() >= MAX_CHANNELS && !self.waiting.contains_key(&record.op.channel) {
            return Some(record);
        }
        let queue = self.waiting.entry(record.op.channel).or_default();
        queue.push_back(record);
        if queue.len() > MAX_WAITING { queue.pop_front() } else { None }
    }

    /// Tells whether a planned op waits of which this can be the post pass.
    pub(super) fn waits_for(&self, post: &ProxyOpEvent) -> bool {
        self.position(post).is_some()
    }

    /// Returns the place in its channel's queue of the op that is posted: of the ops that look alike, the one
    /// whose number fits, or else the oldest.
    fn position(&self, post: &ProxyOpEvent) -> Option<usize> {
        let same_task = |planned: &FlowRecord| match (&planned.task, &post.task) {
            (Some(planned), Some(posted)) => planned.pointer == posted.pointer,
            _ => true,
        };
        let waiting = self.waiting.get(&post.op.channel)?.iter().enumerate();
        let mut alike =
            waiting.filter(|(_, planned)| is_posted_copy(&planned.op, &post.op) && same_task(planned));
        let (oldest, first) = alike.next()?;
        let fits = |planned: &FlowRecord| self.offset == Some(offset(planned, &post.op));
        if fits(first) {
            return Some(oldest);
        }
        Some(alike.find(|(_, planned)| fits(planned)).map_or(oldest, |(at, _)| at))
    }

    /// Finds the planned op, and takes it out of its queue.
    pub(super) fn post(&mut self, post: &ProxyOpEvent) -> Matched {
        let (op, pointer) = (&post.op, post.op_pointer);
        if let Some(at) = self.position(post)
            && let Some(record) = self.waiting.get_mut(&op.channel).and_then(|queue| queue.remove(at))
        {
            if !op.pattern.is_p2p() {
                self.offset = Some(offset(&record, op));
            }
            if self.posted.len() < MAX_POSTED || self.posted.contains_key(&pointer) {
                self.posted.insert(pointer, record.clone());
            }
            return Matched::Planned(Box::new(record));
        }
        self.replayed(post).map_or(Matched::Unknown, |known| Matched::Replay(Box::new(known.clone())))
    }

    /// Returns the op that was posted from the same address before, if a graph posts it again.
    ///
    /// A callback thread of CUDA posts a graph's replay, never the thread that planned the op. So a post that
    /// only looks like a replay, because its plan pass was lost, is not taken for one.
    pub(super) fn replayed(&self, post: &ProxyOpEvent) -> Option<&FlowRecord> {
        let known = self.posted.get(&post.op_pointer)?;
        let is_by_another = known.planned_at.is_some_and(|at| at.tid != post.origin.tid);
        (is_posted_copy(&known.op, &post.op) && is_by_another).then_some(known)
    }

    /// Returns about how many bytes of memory the ops take.
    pub(super) fn held_bytes(&self) -> usize {
        let waiting: usize = self.waiting.values().map(VecDeque::len).sum();
        (waiting + self.posted.len()) * RECORD_BYTES
    }

    /// Takes out the ops that were planned and not posted, as the session ends.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = FlowRecord> {
        std::mem::take(&mut self.waiting).into_values().flatten()
    }
}

/// Returns NCCL's final number of a posted op less our number of the planned one.
fn offset(planned: &FlowRecord, posted: &ProxyOp) -> i64 {
    (posted.op_count >> 1).cast_signed().wrapping_sub((planned.seq >> 1).cast_signed())
}

/// Tells whether `posted` can be the copy of `planned`. Only opCount changes, and the nsteps of PAT and of
/// grouped broadcasts, which NCCL overwrites from peer to peer.
pub(super) fn is_posted_copy(planned: &ProxyOp, posted: &ProxyOp) -> bool {
    let overwritten = planned.pattern.is_pat() || planned.coll.as_deref() == Some("AllGatherV");
    (planned.op_count & 1) == (posted.op_count & 1)
        && planned.channel == posted.channel
        && planned.pattern == posted.pattern
        && planned.protocol == posted.protocol
        && planned.root == posted.root
        && (overwritten || planned.nsteps == posted.nsteps)
        && planned.nbytes == posted.nbytes
        && planned.chunk_size == posted.chunk_size
        // Up to 2.23 only the device work says the size, from which the planned op was completed.
        && (posted.channel_size.is_none() || planned.channel_size == posted.channel_size)
        && planned.loop_offset == posted.loop_offset
        && planned.coll == posted.coll
        && planned.dtype == posted.dtype
        && planned.red_op == posted.red_op
}
