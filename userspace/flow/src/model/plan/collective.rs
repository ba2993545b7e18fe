//! Derives the proxy ops of a collective from its task and its device work.
//!
//! NCCL computes the ops in `scheduleCollTasksToPlan` and `calcCollChunking` (src/enqueue.cc, 2.23 to 2.30;
//! 2.31 and 2.32 by comparison with the ops themselves), asks `ncclProxySaveOp` whether any peer needs a
//! proxy, and forgets ops that need none. Its choices, the chunk size and the share of each channel, stand in
//! the device work; the rest follows.

use crate::decode::{ChannelGraphs, CollTask, CollWork, PlanEvent, ProxyOp};
use nccl_library::nccl::{Algorithm, FIFO_STEPS, Pattern, Protocol, datatype_bytes};

/// Returns the ops in NCCL's order, one for each channel; `None` where they do not follow.
pub(super) fn ops(
    plan: &PlanEvent,
    graphs: &ChannelGraphs,
    task: &CollTask,
    work: &CollWork,
    number: u64,
) -> Option<Vec<ProxyOp>> {
    let (algorithm, protocol) = (task.algorithm?, task.protocol?);
    let function = task.info.function.as_deref()?;
    let pattern = pattern(function, algorithm)?;
    let element = datatype_bytes(task.info.datatype.as_deref()?)?;
    let n_ranks = u64::try_from(plan.comm.n_ranks).ok()?;
    let step_size = graphs.buffer_sizes.get(usize::from(protocol.number())).copied()? / FIFO_STEPS;
    let (chunk_steps, slice_steps) = if protocol == Protocol::Simple && algorithm == Algorithm::Ring {
        (task.chunk_steps, task.slice_steps)
    } else {
        (1, 1)
    };
    let slot = step_size.checked_mul(slice_steps)?;
    let (steps_per_loop, chunks_per_loop) = per_loop(pattern, graphs, n_ranks)?;
    let (first, last) = work.channels;
    // Bytes of one element of a rank's count: over all ranks, where the count is only the rank's own part.
    let global =
        element.checked_mul(if matches!(function, "AllGather" | "ReduceScatter") { n_ranks } else { 1 })?;

    let op = |channel: u32, n_channels: u64, count: u64, chunk_size: u64| -> Option<ProxyOp> {
        let bytes = global.checked_mul(count)?;
        let loop_size = n_channels.checked_mul(chunks_per_loop)?.checked_mul(chunk_size)?;
        let loops = bytes.div_ceil(if loop_size == 0 { return None } else { loop_size });
        Some(ProxyOp {
            op_count: number.checked_mul(2)?,
            channel,
            nsteps: steps_per_loop.checked_mul(loops)?.checked_mul(chunk_steps)?,
            nbytes: i64::try_from(if pattern.is_pat() { bytes } else { slot }).ok()?,
            chunk_size,
            slice_steps,
            chunk_steps,
            root: task.root,
            dtype: task.info.datatype.clone(),
            red_op: task.red_op.clone(),
            pattern,
            protocol,
            algorithm: plan.op_has.algorithm.then_some(algorithm),
            coll: task.info.function.clone(),
            coll_api: if plan.op_has.coll_api { task.info.function.clone() } else { None },
            p2p_nbytes_is_size: true,
            ..ProxyOp::default()
        })
    };

    if task.is_collnet {
        // All channels have even shares, and the offset is that of this rank's head.
        let (count, chunk_count) = work.collnet;
        let chunk_size = chunk_count.checked_mul(element)?;
        let n_channels = u64::from(last.checked_sub(first)?) + 1;
        let head = match pattern {
            Pattern::Nvls => graphs.nvls_heads.1,
            Pattern::CollnetDirect => graphs.collnet_heads.1,
            _ => 0,
        };
        let loop_offset = n_channels.checked_mul(chunk_size)?.wrapping_mul(i64::from(head).cast_unsigned());
        return (first..=last)
            .map(|channel| {
                let op = op(channel, n_channels, count, chunk_size)?;
                Some(with_share(op, plan, None, loop_offset))
            })
            .collect();
    }
    let grain = protocol.grain_bytes();
    (first..=last)
        .map(|channel| {
            let share = work.share_of(channel)?;
            let op = op(channel, 1, share.count, share.chunk_grains.checked_mul(grain)?)?;
            let (size, offset) = (share.count.checked_mul(element)?, share.before.checked_mul(element)?);
            Some(with_share(op, plan, Some(size), offset))
        })
        .collect()
}

/// Adds the channel's share to an op. Ops say their share from 2.24 on, and 0 where channels have none of
/// their own. In 2.23 only the device work tells the share.
fn with_share(op: ProxyOp, plan: &PlanEvent, share: Option<u64>, loop_offset: u64) -> ProxyOp {
    let has = plan.op_has.channel_size;
    let channel_size = if has { share.or(Some(0)) } else { share };
    ProxyOp { channel_size, loop_offset: has.then_some(loop_offset), ..op }
}

fn pattern(function: &str, algorithm: Algorithm) -> Option<Pattern> {
    Some(match (function, algorithm) {
        ("Broadcast", Algorithm::Tree) => Pattern::TreeDown,
        ("Broadcast", _) => Pattern::PipelineFrom,
        ("Reduce", Algorithm::Tree) => Pattern::TreeUp,
        ("Reduce", _) => Pattern::PipelineTo,
        ("ReduceScatter" | "AllGather" | "AllReduce", Algorithm::Nvls) => Pattern::Nvls,
        ("ReduceScatter" | "AllGather" | "AllReduce", Algorithm::CollnetDirect) => Pattern::CollnetDirect,
        ("ReduceScatter", Algorithm::Pat) => Pattern::PatUp,
        ("AllGather", Algorithm::Pat) => Pattern::PatDown,
        ("ReduceScatter" | "AllGather", _) => Pattern::Ring,
        ("AllReduce", Algorithm::NvlsTree) => Pattern::NvlsTree,
        ("AllReduce", Algorithm::CollnetChain) => Pattern::CollnetChain,
        ("AllReduce", Algorithm::Tree) => Pattern::TreeUpDown,
        ("AllReduce", _) => Pattern::RingTwice,
        _ => return None,
    })
}

/// Returns the steps and the chunks of one loop.
fn per_loop(pattern: Pattern, graphs: &ChannelGraphs, n_ranks: u64) -> Option<(u64, u64)> {
    let heads = |(count, _): (i32, i32)| u64::try_from(count).ok();
    Some(match pattern {
        Pattern::Ring => (n_ranks.checked_sub(1)?, n_ranks),
        Pattern::RingTwice => (2 * n_ranks.checked_sub(1)?, n_ranks),
        Pattern::Nvls | Pattern::NvlsTree => (1, heads(graphs.nvls_heads)?),
        Pattern::CollnetDirect => (1, heads(graphs.collnet_heads)?),
        _ => (1, 1),
    })
}
