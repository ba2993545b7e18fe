//! Ops of ranks, put together from their channels: an op comes as a row for each channel, not always one
//! after the other.

use std::collections::{BTreeMap, VecDeque};

use flow::schema::{MessageRow, Op, Wait};
use nccl_library::nccl::Direction;

use super::kinds::KindKey;

/// Most ops of a rank of which further channels may come.
const MAX_OPEN: usize = 512;

/// Most ops of all ranks of which further channels may come.
const MAX_ALL_OPEN: usize = 1 << 17;

/// Most peers of an op whose times are kept apart.
const MAX_PEERS: usize = 64;

/// Kinds of waits, by their names in the data. They are those of a message, except that a receive's wait for
/// the network is called `from_peer`: it is the sender's time, too.
pub(super) const WAITS: [&str; 8] = [
    "gpu_ready",
    "peer_buffer",
    "gpu_ready_or_peer_buffer",
    "network",
    "from_peer",
    "flush",
    "gpu_consume",
    "flush_or_gpu_consume",
];

/// Adds a wait of a message, or of all messages of a link.
pub(super) fn add_wait(sums: &mut [u64; WAITS.len()], op: Direction, wait: Wait, ns: u64) {
    // `from_peer` comes after `network`.
    let (at, network) = (wait as usize, Wait::Network as usize);
    let is_shifted = at > network || (at == network && op == Direction::Recv);
    if let Some(sum) = sums.get_mut(at + usize::from(is_shifted)) {
        *sum = sum.saturating_add(ns);
    }
}

/// Adds waits that were summed up.
pub(super) fn join_waits(sums: &mut [u64; WAITS.len()], more: &[u64; WAITS.len()]) {
    for (sum, ns) in sums.iter_mut().zip(more) {
        *sum = sum.saturating_add(*ns);
    }
}

/// Returns the bit of a channel; NCCL has 64 at most.
pub(super) fn channel_bit(channel: u32) -> u64 {
    1u64.checked_shl(channel).unwrap_or(0)
}

/// An op of a rank, over all channels.
#[derive(Debug, Default)]
pub(super) struct OpTotals {
    pub(super) comm: usize,
    pub(super) rank: i32,
    pub(super) seq: u64,
    pub(super) is_p2p: bool,
    pub(super) kind: KindKey,
    /// Channels, one bit for each.
    pub(super) channels: u64,
    /// Time of the launch, or of the call: Unix time, as all times here.
    pub(super) ts_ns: u64,
    /// Begin, when the first message could begin, and end of the last one, where these were measured.
    pub(super) span_ns: Option<(u64, u64)>,
    pub(super) waits_ns: [u64; 8],
    /// Span of each direction and peer, measured in the same way.
    pub(super) peers: Vec<(Direction, i32, u64, u64)>,
    pub(super) code: Option<usize>,
    pub(super) is_incomplete: bool,
}

impl OpTotals {
    pub(super) fn new(comm: usize, op: &Op, offset_ns: u64, code: Option<usize>) -> Self {
        Self {
            comm,
            rank: op.rank.rank,
            seq: op.row.seq,
            is_p2p: op.row.pattern.is_numbered_apart(),
            kind: KindKey::of_op(op),
            ts_ns: op.row.ts_ns.saturating_add(offset_ns),
            code,
            ..Self::default()
        }
    }

    /// Makes the totals of a call of the API. `number` counts the calls of its rank.
    pub(super) fn of_call(
        (comm, rank): (usize, i32),
        number: u64,
        kind: KindKey,
        ts_ns: u64,
        code: Option<usize>,
    ) -> Self {
        Self { comm, rank, seq: number << 1, kind, ts_ns, code, ..Self::default() }
    }

    pub(super) fn add_channel(&mut self, op: &Op, offset_ns: u64, code: Option<usize>) {
        self.channels |= channel_bit(op.row.channel);
        self.ts_ns = self.ts_ns.min(op.row.ts_ns.saturating_add(offset_ns));
        self.code = self.code.or(code);
        self.is_incomplete |= op.row.incomplete;
    }

    /// Adds a message of the op that was measured.
    pub(super) fn add_message(&mut self, message: &MessageRow, offset_ns: u64) {
        for (wait, ns) in message.known_waits() {
            add_wait(&mut self.waits_ns, message.op, wait, ns);
        }
        let (Some(begin), Some(end)) = (message.begin(), message.t_end_ns.get()) else { return };
        let (begin, end) = (begin.saturating_add(offset_ns), end.saturating_add(offset_ns));
        let (first, last) = self.span_ns.get_or_insert((begin, end));
        (*first, *last) = ((*first).min(begin), (*last).max(end));
        let is_it = |(op, peer, ..): &(Direction, i32, u64, u64)| (*op, *peer) == (message.op, message.peer);
        if let Some(at) = self.peers.iter().position(is_it) {
            if let Some((_, _, first, last)) = self.peers.get_mut(at) {
                (*first, *last) = ((*first).min(begin), (*last).max(end));
            }
        } else if self.peers.len() < MAX_PEERS {
            self.peers.push((message.op, message.peer, begin, end));
        }
    }
}

/// Ops of which more channels may come, by communicator and rank.
#[derive(Debug, Default)]
pub(super) struct OpenOps {
    ranks: BTreeMap<(usize, i32), OpenRank>,
    open: usize,
}

#[derive(Debug, Default)]
struct OpenRank {
    ops: BTreeMap<u64, OpTotals>,
    /// Numbers of the ops, in the order in which they came.
    order: VecDeque<u64>,
}

impl OpenRank {
    fn close_oldest(&mut self) -> Option<OpTotals> {
        self.order.pop_front().and_then(|seq| self.ops.remove(&seq))
    }
}

impl OpenOps {
    /// Returns the op with this number, which is made if it is new. Ops that must go for it are put into
    /// `closed`.
    pub(super) fn get(
        &mut self,
        (comm, rank): (usize, i32),
        seq: u64,
        closed: &mut Vec<OpTotals>,
        new: impl FnOnce() -> OpTotals,
    ) -> Option<&mut OpTotals> {
        if self.open >= MAX_ALL_OPEN {
            self.close(closed);
        }
        let open = self.ranks.entry((comm, rank)).or_default();
        if !open.ops.contains_key(&seq) {
            if open.ops.len() >= MAX_OPEN {
                closed.extend(open.close_oldest());
                self.open = self.open.saturating_sub(1);
            }
            open.ops.insert(seq, new());
            open.order.push_back(seq);
            self.open += 1;
        }
        open.ops.get_mut(&seq)
    }

    pub(super) fn known(&mut self, (comm, rank): (usize, i32), seq: u64) -> Option<&mut OpTotals> {
        self.ranks.get_mut(&(comm, rank))?.ops.get_mut(&seq)
    }

    /// Closes all ops, as no more rows come.
    pub(super) fn close(&mut self, closed: &mut Vec<OpTotals>) {
        for rank in self.ranks.values_mut() {
            while let Some(op) = rank.close_oldest() {
                closed.push(op);
            }
        }
        self.open = 0;
    }
}
