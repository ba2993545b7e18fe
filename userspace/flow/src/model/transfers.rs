//! Lays an op out into the messages that it sends and receives.

use serde::Serialize;

use super::{
    bytes::{BytesKind, Position, Sizes},
    flow::{FlowRecord, PeerFlow},
};
use nccl_library::nccl::{Direction, Pattern};

/// The part of a collective that a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// A ring whose function is not known.
    Ring,
    ReduceScatter,
    Allgather,
    PipelineFrom,
    PipelineTo,
    TreeUp,
    TreeDown,
    CollnetChain,
    CollnetDirect,
    Nvls,
    NvlsTree,
    PatUp,
    PatDown,
    P2p,
}

/// Messages of one op with one peer that are laid out: at 512 KiB each, 64 GiB through one channel. A target that
/// claims more wants to fill our disk; how many are left out is said ([`transfers_left_out`]).
const MAX_TRANSFERS: u64 = 1 << 17;

/// NCCL keeps `sliceSteps` and `chunkSteps` in a byte each; bounded so that nothing a target claims overflows.
const MAX_STEPS: u64 = 1 << 8;

/// One message with one peer. All of it is planned, or derived from what is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// FIFO step at which the message begins, counted from the op's first.
    pub step: u64,
    /// FIFO steps that it takes.
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
    /// Which rank's chunk of the loop, counted along the ring; ring all-reduce only.
    pub chunk: Option<u64>,
}

/// How many messages the op plans with this peer that [`transfers`] does not lay out.
pub fn transfers_left_out(record: &FlowRecord, peer: &PeerFlow) -> u64 {
    peer.nsteps.unwrap_or(0).div_ceil(slots_of(record)).saturating_sub(MAX_TRANSFERS)
}

fn slots_of(record: &FlowRecord) -> u64 {
    record.op.slice_steps.clamp(1, MAX_STEPS)
}

/// The messages of `record` with `peer`, in the order of their steps.
pub fn transfers<'a>(record: &'a FlowRecord, peer: &'a PeerFlow) -> impl Iterator<Item = Transfer> + 'a {
    let op = &record.op;
    let slots = slots_of(record);
    let chunk_steps = op.chunk_steps.clamp(slots, MAX_STEPS);
    let n_ranks = u64::try_from(record.comm.n_ranks).unwrap_or(1).max(1);
    let ring_steps = match op.pattern {
        Pattern::Ring => Some(n_ranks - 1),
        Pattern::RingTwice => Some(2 * (n_ranks - 1)),
        _ => None,
    };
    let steps_per_loop = ring_steps.unwrap_or(1).max(1) * chunk_steps;
    let sizes = Sizes::of(record, peer.nsteps.unwrap_or(0));
    (0..peer.nsteps.unwrap_or(0).div_ceil(slots).min(MAX_TRANSFERS)).map(move |index| {
        let step = index * slots;
        let loop_index = step / steps_per_loop;
        let slice = (step % chunk_steps) / slots;
        let ring_step = ring_steps.map(|_| (step % steps_per_loop) / chunk_steps);
        let chunk = match (op.pattern, ring_step) {
            (Pattern::RingTwice, Some(ring_step)) => {
                Some(chunk_of(record, peer.direction, ring_step, n_ranks))
            }
            _ => None,
        };
        let (bytes, bytes_kind) =
            sizes.bytes(Position { loop_index, chunk: chunk.unwrap_or(0), slice }, index);
        Transfer {
            step,
            slots,
            bytes,
            bytes_kind,
            stage: stage(record, peer, ring_step, n_ranks),
            loop_index,
            ring_step,
            slice,
            chunk,
        }
    })
}

/// The chunk that a ring all-reduce sends or receives at a ring step (2.27: src/device/all_reduce.h, runRing). What is
/// received at a step is sent at the next; the last one received is this rank's successor's.
fn chunk_of(record: &FlowRecord, direction: Direction, ring_step: u64, n_ranks: u64) -> u64 {
    let index = u64::try_from(record.ring.index).unwrap_or(0) % n_ranks;
    let sent_at = |step: u64| (index + n_ranks - 1 - step % n_ranks) % n_ranks;
    match direction {
        Direction::Send => sent_at(ring_step),
        Direction::Recv if ring_step + 1 == 2 * (n_ranks - 1) => (index + 1) % n_ranks,
        Direction::Recv => sent_at(ring_step + 1),
    }
}

fn stage(record: &FlowRecord, peer: &PeerFlow, ring_step: Option<u64>, n_ranks: u64) -> Stage {
    match record.op.pattern {
        // The send at n-1 is the first chunk that is reduced over all ranks.
        Pattern::RingTwice if ring_step.is_some_and(|step| step + 1 < n_ranks) => Stage::ReduceScatter,
        Pattern::RingTwice => Stage::Allgather,
        Pattern::Ring => match record.coll() {
            Some("AllGather" | "AllGatherV") => Stage::Allgather,
            Some("ReduceScatter") => Stage::ReduceScatter,
            _ => Stage::Ring,
        },
        Pattern::PipelineFrom => Stage::PipelineFrom,
        Pattern::PipelineTo => Stage::PipelineTo,
        Pattern::TreeUp => Stage::TreeUp,
        Pattern::TreeDown => Stage::TreeDown,
        // Up: to the parent, from the children. Down: the other way.
        Pattern::TreeUpDown => {
            let to_parent = peer.peer == record.tree.up;
            if to_parent == (peer.direction == Direction::Send) { Stage::TreeUp } else { Stage::TreeDown }
        }
        Pattern::CollnetChain => Stage::CollnetChain,
        Pattern::CollnetDirect => Stage::CollnetDirect,
        Pattern::Nvls => Stage::Nvls,
        Pattern::NvlsTree => Stage::NvlsTree,
        Pattern::PatUp => Stage::PatUp,
        Pattern::PatDown => Stage::PatDown,
        Pattern::Send | Pattern::Recv | Pattern::Profiler => Stage::P2p,
    }
}
