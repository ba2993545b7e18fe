//! Numbers the ops of a communicator, so that a collective has one number on all its ranks.
//!
//! NCCL counts the collectives that it launches, the same on every rank, and every record carries that count.
//! The number of an op is that count plus its place in the plan, which is right wherever the tracer came in
//! and corrects itself after a loss. Where the count lags (plans that were made and not yet launched), our
//! own is ahead, and the larger wins.

use foldhash::HashMap;

use crate::decode::ProxyOpEvent;
use nccl_library::nccl::Pattern;

/// p2p calls that are kept open, of as many peers. NCCL does not say when a call is complete, so those of
/// peers that never come again stay; more than this a communicator does not have in use.
const MAX_OPEN_P2P: usize = 65_536;

/// A collective whose channels are still coming in.
#[derive(Debug)]
struct OpenCollective {
    /// Count of launched collectives when it was planned.
    launched: Option<u64>,
    op_count: u64,
    task: Option<u64>,
    channels: Vec<u32>,
    number: u64,
}

/// A p2p call whose channels are still coming in.
#[derive(Debug)]
struct OpenP2p {
    task: Option<u64>,
    channels: Vec<u32>,
    number: u64,
}

/// What a plan-pass call is numbered as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbered {
    pub(super) seq: u64,
    /// Channels of the same op that came before this one.
    pub(super) part: u64,
    /// The first channel of its op.
    pub(super) opens: bool,
}

/// The numbers given out on one communicator.
#[derive(Debug, Default)]
pub(super) struct Sequencer {
    next_collective: u64,
    next_p2p: u64,
    collective: Option<OpenCollective>,
    /// By pattern and peer.
    p2p: HashMap<(Pattern, i32), OpenP2p>,
    /// Final opCount and number of the last collective that was seen only when it was posted.
    late: Option<(u64, u64)>,
}

/// Larger than any count of launches. A target can claim any count; numbers must not overflow.
const MAX_NUMBER: u64 = 1 << 62;

/// What NCCL's count and our own say together.
fn larger(by_nccl: Option<u64>, ours: u64) -> u64 {
    by_nccl.unwrap_or(0).max(ours).min(MAX_NUMBER)
}

fn seq_of(number: u64, p2p: bool) -> u64 {
    (number << 1) | u64::from(p2p)
}

impl Sequencer {
    /// Numbers a call of the plan pass.
    pub(super) fn plan(&mut self, event: &ProxyOpEvent) -> Numbered {
        let task = event.task.as_ref().map(|task| task.pointer);
        if event.op.pattern.is_p2p() { self.plan_p2p(event, task) } else { self.plan_collective(event, task) }
    }

    fn plan_collective(&mut self, event: &ProxyOpEvent, task: Option<u64>) -> Numbered {
        let channel = event.op.channel;
        if let Some(open) = &mut self.collective
            && open.launched == event.comm.launched
            && open.op_count == event.op.op_count
            && open.task == task
            && !open.channels.contains(&channel)
        {
            open.channels.push(channel);
            let part = open.channels.len() as u64 - 1;
            return Numbered { seq: seq_of(open.number, false), part, opens: false };
        }
        let place = event.op.op_count >> 1;
        let by_nccl = if event.op.slices.is_some() {
            // Grouped broadcasts carry another count of NCCL's: of the communicator, and not of the plan.
            Some(place)
        } else {
            event.comm.launched.map(|launched| launched.saturating_add(place))
        };
        let number = larger(by_nccl, self.next_collective);
        self.next_collective = number + 1;
        self.collective = Some(OpenCollective {
            launched: event.comm.launched,
            op_count: event.op.op_count,
            task,
            channels: vec![channel],
            number,
        });
        Numbered { seq: seq_of(number, false), part: 0, opens: true }
    }

    fn plan_p2p(&mut self, event: &ProxyOpEvent, task: Option<u64>) -> Numbered {
        let channel = event.op.channel;
        let key = (event.op.pattern, event.op.root);
        if let Some(open) = self.p2p.get_mut(&key)
            && open.task == task
            && !open.channels.contains(&channel)
        {
            open.channels.push(channel);
            let part = open.channels.len() as u64 - 1;
            return Numbered { seq: seq_of(open.number, true), part, opens: false };
        }
        let number = self.next_p2p;
        self.next_p2p += 1;
        if self.p2p.len() >= MAX_OPEN_P2P {
            self.p2p.clear();
        }
        self.p2p.insert(key, OpenP2p { task, channels: vec![channel], number });
        Numbered { seq: seq_of(number, true), part: 0, opens: true }
    }

    /// Numbers an op that is seen for the first time when it is posted: the tracer came in between, or it is
    /// a replay.
    pub(super) fn post(&mut self, event: &ProxyOpEvent) -> u64 {
        let op_count = event.op.op_count;
        if event.op.pattern.is_p2p() {
            self.next_p2p += 1;
            return seq_of(self.next_p2p - 1, true);
        }
        if let Some((known, number)) = self.late
            && known == op_count
        {
            return seq_of(number, false);
        }
        // By now NCCL has counted the plan that the op is in.
        let by_nccl = event.comm.launched.map(|launched| launched.saturating_sub(1));
        let number = larger(by_nccl, self.next_collective);
        self.next_collective = number + 1;
        self.late = Some((op_count, number));
        seq_of(number, false)
    }
}
