//! Derives the proxy ops of a send and a receive that share a round from their device work, as `addP2pToPlan`
//! does (src/enqueue.cc, 2.23 to 2.30; 2.31 and 2.32 by comparison with the ops themselves).

use foldhash::HashMap;

use crate::decode::{P2pSide, P2pTask, P2pWork, PlanEvent, ProxyOp, TaskInfo, Work, WorkBatch, WorkKind};
use nccl_library::nccl::{P2P_NAMES, Pattern, Protocol};

/// `NCCL_MAX_NET_SIZE`: bytes of one message of a registered buffer, 2.24 and later.
const MAX_NET_SIZE: u64 = 1 << 30;

/// Numbers of the ops of device work in their plan: the place, counted from 1, of the work's batch among the
/// channel's batches of sends and receives.
#[derive(Debug, Default)]
pub(super) struct Batches {
    by_channel_and_offset: HashMap<(u32, u64), u64>,
}

impl Batches {
    /// Numbers the batches behind the kernel's arguments. First comes the first batch of each channel, in the
    /// order of channels; each batch says where the channel's next one is (`finishPlan`, src/enqueue.cc).
    pub(super) fn new(plan: &PlanEvent, batches: &[WorkBatch], work_size: u64) -> Self {
        let mut this = Self::default();
        // Offsets were moved when the work was uploaded; the first work of a plan is at the smallest.
        let start = batches.iter().map(|batch| batch.base).min().unwrap_or(0);
        let channels = (0..u64::BITS).filter(|channel| plan.channel_mask & (1 << channel) != 0);
        for (first, channel) in channels.enumerate() {
            let (mut at, mut number, mut extends) = (first, 0, false);
            while let Some(batch) = batches.get(at) {
                if batch.is_p2p && !extends {
                    number += 1;
                }
                for bit in (0..u64::BITS).filter(|bit| batch.is_p2p && batch.bits & (1 << bit) != 0) {
                    let offset = batch.base - start + u64::from(bit) * work_size;
                    this.by_channel_and_offset.insert((channel, offset), number);
                }
                extends = batch.next_extends;
                match usize::try_from(batch.next_jump) {
                    Ok(0) | Err(_) => break,
                    Ok(jump) => at += jump,
                }
            }
        }
        this
    }

    fn of(&self, channel: u32, offset: u64) -> Option<u64> {
        self.by_channel_and_offset.get(&(channel, offset)).copied()
    }
}

/// Returns the bytes of the device work of a send and a receive.
pub(super) fn work_size(works: &[Work]) -> u64 {
    works.iter().find(|work| matches!(work.what, WorkKind::P2p(_))).map_or(0, |work| work.size)
}

/// Returns the ops in NCCL's order: part by part, the receive first. `offset`: place of the work among the
/// plan's works, in bytes.
pub(super) fn ops(
    plan: &PlanEvent,
    work: &P2pWork,
    tasks: [Option<&P2pTask>; 2],
    batches: &Batches,
    offset: u64,
) -> Option<Vec<(ProxyOp, Option<TaskInfo>)>> {
    let [receive, send] = &work.sides;
    if send.peer == plan.comm.rank {
        return Some(Vec::new()); // a copy to oneself has no proxy op
    }
    let mut ops = Vec::new();
    for part in 0..receive.n_channels.max(send.n_channels) {
        let channel = work.channel_of(part)?;
        for (side, task, pattern) in
            [(receive, tasks.first()?, Pattern::Recv), (send, tasks.get(1)?, Pattern::Send)]
        {
            if part >= side.n_channels {
                continue;
            }
            let op_count = (batches.of(channel, offset)? << 1) | 1;
            let (nsteps, nbytes) = share(plan, side, part)?;
            let (own, chunk, has) = (&P2P_NAMES, side.chunk_data_size, &plan.op_has);
            let op = ProxyOp {
                op_count,
                channel,
                nsteps,
                nbytes: i64::try_from(nbytes).ok()?,
                chunk_size: if side.is_ll { chunk.checked_mul(2)? } else { chunk },
                slice_steps: 1,
                chunk_steps: 1,
                root: side.peer,
                dtype: Some(own.datatype.clone()),
                red_op: Some(own.reduction_op.clone()),
                pattern,
                protocol: if side.is_ll { Protocol::Ll } else { Protocol::Simple },
                coll: Some(if pattern == Pattern::Send { &own.send } else { &own.recv }.clone()),
                coll_api: task.filter(|_| has.coll_api).and_then(|task| task.info.called.clone()),
                registered: side.is_registered,
                p2p_nbytes_is_size: true,
                channel_size: has.channel_size.then_some(0),
                loop_offset: has.channel_size.then_some(0),
                part_bytes: side.part_bytes(part),
                ..ProxyOp::default()
            };
            ops.push((op, task.map(|task| task.info.clone())));
        }
    }
    Some(ops)
}

/// Returns the FIFO steps of a part, and the bytes of its largest message.
fn share(plan: &PlanEvent, side: &P2pSide, part: u32) -> Option<(u64, u64)> {
    if side.bytes == 0 {
        return Some((1, 0));
    }
    let bytes = side.part_bytes(part)?;
    let (nsteps, mut nbytes) = if side.is_registered {
        // Before 2.24, which gave ops their share of the channel, a part is one message of any size.
        (if plan.op_has.channel_size { bytes.div_ceil(MAX_NET_SIZE) } else { 1 }, bytes)
    } else {
        let chunk = side.chunk_data_size;
        (bytes.div_ceil(if chunk == 0 { return None } else { chunk }), bytes.min(chunk))
    };
    if side.is_ll {
        nbytes = nbytes.checked_mul(2)?.checked_next_multiple_of(16)?;
    }
    (nsteps != 0).then_some((nsteps, nbytes))
}
