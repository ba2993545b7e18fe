//! State of the GPU's kernel by the steps of an op in flight: whether it runs, the steps that it has filled,
//! and those that it needs.

use crate::OpReport;
use nccl_library::nccl::Direction;

/// Tells whether the GPU is known to have filled or emptied a slot.
pub(super) fn gpu_has_begun(op: &OpReport) -> bool {
    match op.direction {
        Direction::Send => produced(op) > 0,
        Direction::Recv => op.done > 0 || op.gpu.is_some_and(|gpu| gpu > 0),
    }
}

/// Tells whether the GPU is known to be in the collective `count`, the oldest in flight: it filled or emptied
/// a slot of it, or a part of it is over, as a later one has begun on the same channel. A connection's ops
/// run one after the other.
pub(super) fn in_collective(ops: &[OpReport], count: u64) -> bool {
    let unfinished = || ops.iter().filter(|op| !op.p2p && op.is_unfinished());
    unfinished().filter(|op| op.op_count == count).any(|op| {
        gpu_has_begun(op)
            || unfinished().any(|later| later.begun && later.op_count > count && later.channel == op.channel)
    })
}

/// Tells whether the GPU is known to be in a batch of sends and receives: it has begun one that is not over,
/// or a part of the oldest batch of a channel is over already, so that another part stands behind later
/// batches of that channel.
pub(super) fn in_point_to_point(ops: &[OpReport]) -> bool {
    let unfinished = || ops.iter().filter(|op| op.p2p && op.is_unfinished());
    let part_is_over = |op: &OpReport| {
        let same_channel = || unfinished().filter(|other| other.channel == op.channel);
        let of = |direction| {
            same_channel().filter(move |other| other.direction == direction).map(|other| other.op_count).min()
        };
        matches!((of(Direction::Send), of(Direction::Recv)), (Some(send), Some(receive)) if send != receive)
    };
    unfinished().any(|op| gpu_has_begun(op) || part_is_over(op))
}

/// Returns the number of slots that the GPU has filled, at least.
pub(super) fn produced(send: &OpReport) -> u64 {
    send.gpu.map_or(send.transmitted, |gpu| gpu.clamp(send.transmitted, send.posted.max(send.transmitted)))
}

/// Returns the steps that must have come in before the next one can go out.
pub(super) fn needed(send: &OpReport) -> u64 {
    let produced = produced(send);
    match send.pattern.as_deref() {
        // A rank of a ring begins with data of its own and then passes on what came in one chunk before.
        Some("RING" | "RING_TWICE") if produced < send.chunk_steps => 0,
        Some("RING" | "RING_TWICE") => produced + send.slice_steps - send.chunk_steps.min(produced),
        _ => produced + send.slice_steps,
    }
}
