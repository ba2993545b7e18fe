//! Numbers the ops of a communicator, so that a collective has one number on all its ranks.
//!
//! NCCL counts the collectives that it launches, the same on every rank, and every record carries that count.
//! The number of an op is that count plus the op's place in the plan, which is right wherever the tracer came
//! in and corrects itself after a loss. Where NCCL's count lags (plans that were made and not yet launched),
//! our own count is ahead, and the larger one is taken.

use foldhash::HashMap;

use super::joined_calls::JoinedCall;
use crate::decode::{ApiCallEvent, ProxyOpEvent};
use nccl_library::nccl::Pattern;

/// Ops that are kept open: p2p calls of as many peers. NCCL does not say when a call is complete, so calls of
/// peers that never come again stay; a communicator does not have more than this in use.
const MAX_OPEN: usize = 65_536;

/// An op whose channels are still coming in.
#[derive(Debug)]
pub(super) struct OpenOp {
    identity: Identity,
    channels: Vec<u32>,
    pub(super) seq: u64,
    /// Call of the API that the op comes from, where calls are recorded.
    pub(super) joined: JoinedCall,
    /// The same call, as it came to be known with the ops.
    pub(super) called: Option<ApiCallEvent>,
}

impl OpenOp {
    /// Returns the number of channels that came before the one that came last.
    pub(super) fn part(&self) -> u64 {
        (self.channels.len() as u64).saturating_sub(1)
    }
}

/// Properties that the calls of an op share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    task: Option<u64>,
    /// Count of launched collectives when the op was planned, and its opCount; only of a collective.
    collective: Option<(Option<u64>, u64)>,
}

/// The numbers given out on one communicator.
#[derive(Debug, Default)]
pub(super) struct Sequencer {
    next_collective: u64,
    next_p2p: u64,
    /// Open ops: p2p calls by pattern and peer, as they interleave; under `None` the collective.
    open: HashMap<Option<(Pattern, i32)>, OpenOp>,
    /// Final opCount and number of the last collective that was seen only when it was posted.
    late: Option<(u64, u64)>,
}

/// Bytes that the channels of an open op take, about.
const OPEN_CHANNELS_BYTES: usize = 64;

/// Larger than any count of launches. A target can claim any count; numbers must not overflow.
const MAX_NUMBER: u64 = 1 << 62;

impl Sequencer {
    /// Returns about how many bytes of memory the open ops take.
    pub(super) fn held_bytes(&self) -> usize {
        self.open.len() * (size_of::<OpenOp>() + OPEN_CHANNELS_BYTES)
    }

    /// Numbers a call of the plan pass: returns the op that it is a channel of.
    pub(super) fn plan(&mut self, event: &ProxyOpEvent) -> Option<&mut OpenOp> {
        let op = &event.op;
        let is_p2p = op.pattern.is_numbered_apart();
        let key = is_p2p.then_some((op.pattern, op.root));
        let identity = Identity {
            task: event.task.as_ref().map(|task| task.pointer),
            collective: (!is_p2p).then_some((event.comm.launched, op.op_count)),
        };
        let is_next = |open: &OpenOp| open.identity == identity && !open.channels.contains(&op.channel);
        if !self.open.get(&key).is_some_and(is_next) {
            let seq = self.next(event);
            if self.open.len() >= MAX_OPEN {
                self.open.retain(|key, _| key.is_none());
            }
            let (channels, joined) = (Vec::new(), JoinedCall::default());
            self.open.insert(key, OpenOp { identity, channels, seq, joined, called: None });
        }
        let open = self.open.get_mut(&key)?;
        open.channels.push(op.channel);
        Some(open)
    }

    /// Returns the number of the next op that is planned.
    fn next(&mut self, event: &ProxyOpEvent) -> u64 {
        let (op, launched) = (&event.op, event.comm.launched);
        let place = op.op_count >> 1;
        if op.pattern.is_numbered_apart() {
            return self.next_p2p();
        }
        let by_nccl = if op.slices.is_some() {
            // Grouped broadcasts carry another count of NCCL's: their place in the communicator, not in the
            // plan.
            Some(place)
        } else {
            launched.map(|launched| launched.saturating_add(place))
        };
        self.next_collective(by_nccl)
    }

    fn next_p2p(&mut self) -> u64 {
        self.next_p2p += 1;
        ((self.next_p2p - 1) << 1) | 1
    }

    /// Returns the next collective's number: by NCCL's count or our own, whichever is larger.
    fn next_collective(&mut self, by_nccl: Option<u64>) -> u64 {
        let number = by_nccl.unwrap_or(0).max(self.next_collective).min(MAX_NUMBER);
        self.next_collective = number + 1;
        number << 1
    }

    /// Numbers an op that is seen for the first time when it is posted: the tracer came in between, or the op
    /// is a replay.
    pub(super) fn post(&mut self, event: &ProxyOpEvent) -> u64 {
        let op_count = event.op.op_count;
        if event.op.pattern.is_p2p() {
            return self.next_p2p();
        }
        if let Some((known, seq)) = self.late
            && known == op_count
        {
            return seq;
        }
        // By now NCCL has counted the plan that the op is in.
        let by_nccl = event.comm.launched.map(|launched| launched.saturating_sub(1));
        let seq = self.next_collective(by_nccl);
        self.late = Some((op_count, seq));
        seq
    }
}
