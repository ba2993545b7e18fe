//! Finds the planned op that a post pass is about.
//!
//! NCCL copies the planned op into a queue and posts the copy: another address, and a final opCount. On one channel of one
//! communicator it posts in the order of planning, so the first planned op that looks the same is the one.

use std::collections::{HashMap, VecDeque};

use super::flow::FlowRecord;
use crate::{decode::ProxyOp, nccl::Pattern};

/// Planned ops that are kept waiting for their post pass, per channel. A plan that is never launched (an aborted group,
/// a graph that is captured and thrown away) leaves some behind.
const MAX_WAITING: usize = 8192;

/// Channels that ops wait on. NCCL has 64 at most (`MAXCHANNELS`, 2.25 and later).
const MAX_CHANNELS: usize = 256;

/// Posted ops that are remembered. NCCL reuses the memory of its copies, so there are few addresses.
const MAX_POSTED: usize = 65_536;

/// Planned ops that wait, and posted ones that a CUDA graph may post again.
#[derive(Debug, Default)]
pub(super) struct PostMatcher {
    waiting: HashMap<u32, VecDeque<FlowRecord>>,
    /// By the address of NCCL's copy.
    posted: HashMap<u64, FlowRecord>,
}

/// What a post pass is about.
#[derive(Debug)]
pub(super) enum Matched {
    /// This planned op.
    Planned(Box<FlowRecord>),
    /// A graph posts this op again.
    Replay(Box<FlowRecord>),
    /// Nothing that was seen being planned.
    Unknown,
}

impl PostMatcher {
    /// Keeps a planned op until it is posted. Gives back what has waited too long.
    pub(super) fn wait(&mut self, record: FlowRecord) -> Option<FlowRecord> {
        if self.waiting.len() >= MAX_CHANNELS && !self.waiting.contains_key(&record.op.channel) {
            return Some(record);
        }
        let queue = self.waiting.entry(record.op.channel).or_default();
        queue.push_back(record);
        if queue.len() > MAX_WAITING { queue.pop_front() } else { None }
    }

    /// Whether a planned op waits that `op` can be the posted copy of.
    pub(super) fn waits_for(&self, op: &ProxyOp) -> bool {
        self.waiting
            .get(&op.channel)
            .is_some_and(|queue| queue.iter().any(|planned| is_posted_copy(&planned.op, op)))
    }

    /// Finds the op that `op`, at `pointer`, is the posted copy of.
    ///
    /// A graph's replay is posted by a callback thread of CUDA's, never by the thread that planned it (`tid`): a post that
    /// only looks like one, because its plan pass was lost, is not taken for one.
    pub(super) fn post(&mut self, pointer: u64, tid: u32, op: &ProxyOp) -> Matched {
        if let Some(queue) = self.waiting.get_mut(&op.channel)
            && let Some(at) = queue.iter().position(|planned| is_posted_copy(&planned.op, op))
            && let Some(record) = queue.remove(at)
        {
            if self.posted.len() < MAX_POSTED || self.posted.contains_key(&pointer) {
                self.posted.insert(pointer, record.clone());
            }
            return Matched::Planned(Box::new(record));
        }
        match self.posted.get(&pointer) {
            Some(known)
                if is_posted_copy(&known.op, op) && known.planned_at.is_some_and(|at| at.tid != tid) =>
            {
                Matched::Replay(Box::new(known.clone()))
            }
            _ => Matched::Unknown,
        }
    }

    /// The session ends: what was planned and not posted.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = FlowRecord> {
        std::mem::take(&mut self.waiting).into_values().flatten()
    }
}

/// Whether `posted` can be the copy of `planned`: all but opCount stays (and, for PAT, nsteps, which NCCL overwrites from
/// peer to peer).
pub(super) fn is_posted_copy(planned: &ProxyOp, posted: &ProxyOp) -> bool {
    let pat = matches!(planned.pattern, Pattern::PatUp | Pattern::PatDown);
    (planned.op_count & 1) == (posted.op_count & 1)
        && planned.channel == posted.channel
        && planned.pattern == posted.pattern
        && planned.protocol == posted.protocol
        && planned.root == posted.root
        && (pat || planned.nsteps == posted.nsteps)
        && planned.nbytes == posted.nbytes
        && planned.chunk_size == posted.chunk_size
        && planned.channel_size == posted.channel_size
        && planned.loop_offset == posted.loop_offset
        && planned.coll == posted.coll
        && planned.dtype == posted.dtype
        && planned.red_op == posted.red_op
}
