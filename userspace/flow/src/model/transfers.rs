//! Lays an op out into the messages that it sends and receives.

use super::{
    bytes::{Position, Sizes},
    flow::{FlowRecord, PeerFlow},
};
use crate::{
    decode::Connector,
    schema::{BytesKind, Stage},
};
use nccl_library::nccl::{Direction, Name, Pattern};

/// Messages of one op with one peer that are laid out: at 512 KiB each, 64 GiB through one channel. A target
/// that claims more wants to fill our disk; [`Layout::left_out`] says how many are left out.
const MAX_TRANSFERS: u64 = 1 << 17;

/// Bound of `sliceSteps` and `chunkSteps`, so that nothing that a target claims overflows. NCCL keeps each in
/// a byte.
const MAX_STEPS: u64 = 1 << 8;

/// A message with one peer. All values are planned, or derived from planned ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// FIFO step at which the message begins, counted from the op's first.
    pub step: u64,
    /// FIFO steps that the message takes.
    pub slots: u64,
    pub bytes: u64,
    pub bytes_kind: BytesKind,
    pub stage: Stage,
    /// Repetition of the pattern.
    pub loop_index: u64,
    /// Step along the ring inside the loop; rings only.
    pub ring_step: Option<u64>,
    /// Part of the chunk.
    pub slice: u64,
    /// Rank whose chunk of the loop this is, counted along the ring; ring all-reduce only.
    pub chunk: Option<u64>,
}

/// Layout of the messages of an op with one peer.
#[derive(Debug)]
pub(super) struct Layout<'a> {
    record: &'a FlowRecord,
    direction: Direction,
    is_ring: bool,
    n_ranks: u64,
    /// Stage of all messages; of a ring all-reduce, of those that are not reduced over all ranks yet.
    first_stage: Stage,
    pub(super) key: LayoutKey,
}

/// Key of a layout: layouts with the same key have messages of the same sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LayoutKey {
    /// Direction, this rank's index, and number of ranks of a ring all-reduce, in which each message is of
    /// another rank's chunk.
    ring: Option<(Direction, i32, u64)>,
    sizes: Sizes,
    /// FIFO steps of a message, of a chunk, and of a repetition of the pattern.
    slots: u64,
    chunk_steps: u64,
    steps_per_loop: u64,
    /// Messages that NCCL planned.
    planned: u64,
}

impl<'a> Layout<'a> {
    pub(super) fn new(record: &'a FlowRecord, peer: &PeerFlow) -> Self {
        let op = &record.op;
        let slots = op.slice_steps.clamp(1, MAX_STEPS);
        let chunk_steps = op.chunk_steps.clamp(slots, MAX_STEPS);
        let n_ranks = u64::try_from(record.comm.n_ranks).unwrap_or(1).max(1);
        let ring_steps = match op.pattern {
            Pattern::Ring => Some(n_ranks - 1),
            Pattern::RingTwice => Some(2 * (n_ranks - 1)),
            _ => None,
        };
        let nsteps = peer.nsteps.unwrap_or(0);
        let direction = peer.connector.direction;
        let ring = (direction, record.ring.index, n_ranks);
        let key = LayoutKey {
            ring: (op.pattern == Pattern::RingTwice).then_some(ring),
            sizes: Sizes::of(record, nsteps),
            slots,
            chunk_steps,
            steps_per_loop: ring_steps.unwrap_or(1).max(1) * chunk_steps,
            planned: nsteps.div_ceil(slots),
        };
        let (is_ring, first_stage) = (ring_steps.is_some(), first_stage(record, peer));
        Self { record, direction, is_ring, n_ranks, first_stage, key }
    }

    /// Returns the number of messages that are laid out.
    pub(super) fn len(&self) -> u64 {
        self.key.planned.min(MAX_TRANSFERS)
    }

    /// Returns the number of messages that the op plans with this peer and that are not laid out.
    pub(super) fn left_out(&self) -> u64 {
        self.key.planned.saturating_sub(MAX_TRANSFERS)
    }

    /// Returns the message of this number, counted from 0.
    pub(super) fn message(&self, index: u64) -> Transfer {
        let LayoutKey { sizes, slots, chunk_steps, steps_per_loop, .. } = self.key;
        let step = index * slots;
        let loop_index = step / steps_per_loop;
        let slice = (step % chunk_steps) / slots;
        let ring_step = self.is_ring.then(|| (step % steps_per_loop) / chunk_steps);
        let (mut chunk, mut stage) = (None, self.first_stage);
        if let (Pattern::RingTwice, Some(ring_step)) = (self.record.op.pattern, ring_step) {
            chunk = Some(chunk_of(self.record, self.direction, ring_step, self.n_ranks));
            // The send at n-1 is the first chunk that is reduced over all ranks.
            if ring_step + 1 >= self.n_ranks {
                stage = Stage::Allgather;
            }
        }
        let position = Position { loop_index, chunk: chunk.unwrap_or(0), slice };
        let (bytes, bytes_kind) = sizes.bytes(position, index);
        Transfer { step, slots, bytes, bytes_kind, stage, loop_index, ring_step, slice, chunk }
    }
}

/// Returns the messages of `record` with `peer`, in the order of their steps.
pub(super) fn transfers(record: &FlowRecord, peer: &PeerFlow) -> impl Iterator<Item = Transfer> {
    let layout = Layout::new(record, peer);
    (0..layout.len()).map(move |index| layout.message(index))
}

/// Returns the chunk that a ring all-reduce sends or receives at a ring step (2.27: src/device/all_reduce.h,
/// runRing). A chunk that is received at a step is sent at the next; the last one received is that of this
/// rank's successor.
fn chunk_of(record: &FlowRecord, direction: Direction, ring_step: u64, n_ranks: u64) -> u64 {
    let index = u64::try_from(record.ring.index).unwrap_or(0) % n_ranks;
    let sent_at = |step: u64| (index + n_ranks - 1 - step % n_ranks) % n_ranks;
    match direction {
        Direction::Send => sent_at(ring_step),
        Direction::Recv if ring_step + 1 == 2 * (n_ranks - 1) => (index + 1) % n_ranks,
        Direction::Recv => sent_at(ring_step + 1),
    }
}

fn first_stage(record: &FlowRecord, peer: &PeerFlow) -> Stage {
    let Connector { peer, direction, .. } = peer.connector;
    // Up: to the parent, from the children. Down: the other way.
    let is_up = (peer == record.tree.up) == (direction == Direction::Send);
    match record.op.pattern {
        Pattern::RingTwice => Stage::ReduceScatter,
        Pattern::Ring => match record.coll().map(Name::as_str) {
            Some("AllGather" | "AllGatherV") => Stage::Allgather,
            Some("ReduceScatter") => Stage::ReduceScatter,
            _ => Stage::Ring,
        },
        Pattern::PipelineFrom => Stage::PipelineFrom,
        Pattern::PipelineTo => Stage::PipelineTo,
        Pattern::TreeUp => Stage::TreeUp,
        Pattern::TreeUpDown if is_up => Stage::TreeUp,
        Pattern::TreeDown | Pattern::TreeUpDown => Stage::TreeDown,
        Pattern::CollnetChain => Stage::CollnetChain,
        Pattern::CollnetDirect => Stage::CollnetDirect,
        Pattern::Nvls => Stage::Nvls,
        Pattern::NvlsTree => Stage::NvlsTree,
        Pattern::PatUp => Stage::PatUp,
        Pattern::PatDown => Stage::PatDown,
        // All but sends and receives have no messages.
        Pattern::Send
        | Pattern::Recv
        | Pattern::Profiler
        | Pattern::Symmetric
        | Pattern::CopyEngine
        | Pattern::Grouped
        | Pattern::OneSided => Stage::P2p,
    }
}
