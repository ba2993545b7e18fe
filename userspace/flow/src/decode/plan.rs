//! Records of a walked plan.

use ncclflow_common::CUT;

use super::{
    ChannelGraphs, CommunicatorId, Connector, DecodeError, Decoder, Origin, ProxyOp, RecordView, Result,
    TaskInfo,
    communicator::communicator,
    device_work::{Work, work},
    launch::{Launch, OneSidedCall, launch, one_sided},
    plan_fields::PlanFields,
    proxy_op::{op, task_of_op},
};
use crate::wire::{PlanList, PlanNodeSpans, PlanSpans};
use nccl_library::nccl::{Algorithm, Name, P2P_NAMES, PatRule, Protocol};

/// Last record of a walk: the plan's communicator, and the number of nodes of each list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "NCCL's own facts, each on its own")]
pub struct PlanEvent {
    pub origin: Origin,
    pub comm: CommunicatorId,
    /// Address of the `ncclKernelPlan`.
    pub plan: u64,
    /// CUDA's callback thread posts the plan now; else its kernel was launched.
    pub in_callback: bool,
    /// The plan is part of a CUDA graph.
    pub persistent: bool,
    /// The callback posts the plan, and not the launching thread right after the launch.
    pub by_callback: bool,
    /// Channels that the plan runs on, a bit for each.
    pub channel_mask: u64,
    /// Fields that this version's ops have.
    pub op_has: OpShape,
    /// Rule by which this version counts PAT's messages, where it is known.
    pub pat: Option<PatRule>,
    /// Bytes of all device work of the plan.
    pub work_bytes: u64,
    /// Nodes found of each list, and whether the list was cut.
    pub nodes: Vec<(PlanList, u64, bool)>,
    /// What is launched, if the plan has no proxy ops.
    pub launch: Option<Launch>,
    /// The plan's one-sided calls are about to be launched.
    pub one_sided: bool,
}

/// Fields of `ncclProxyOp` that came with a later version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpShape {
    /// `algorithm`: 2.24 and later.
    pub algorithm: bool,
    /// `collAPI`: 2.28 and later.
    pub coll_api: bool,
    /// `channelSize` and `loopOffset`: 2.24 and later.
    pub channel_size: bool,
}

/// A record of a node or row of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanPartEvent {
    pub origin: Origin,
    pub part: PlanPart,
}

/// Node or row of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanPart {
    CollTask(CollTask),
    P2pTask(P2pTask),
    Work(Work),
    Batch(WorkBatch),
    OpCounts(OpCounts),
    ProxyOp(Box<QueuedOp>),
    OneSided(Box<OneSidedCall>),
    Channel(u32, ChannelGraphs),
    Connectors(u32, Vec<Connector>),
}

/// `ncclTaskColl`: a collective as it was called, and what NCCL chose for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollTask {
    pub info: TaskInfo,
    pub root: i32,
    /// Reduction as the network sees it: an average as a sum.
    pub red_op: Option<Name>,
    pub chunk_steps: u64,
    pub slice_steps: u64,
    pub algorithm: Option<Algorithm>,
    pub protocol: Option<Protocol>,
    /// All channels share the collective evenly: CollNet, and NVLS over several nodes.
    pub is_collnet: bool,
}

/// `ncclTaskP2p`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P2pTask {
    pub info: TaskInfo,
    /// `Send` or `Recv`.
    pub function: Option<Name>,
    pub peer: i32,
}

/// `ncclDevWorkBatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkBatch {
    /// Distance in batches to the channel's next one; 0: this is the last.
    pub next_jump: u64,
    pub next_extends: bool,
    pub is_p2p: bool,
    pub base: u64,
    pub bits: u64,
}

/// Counts of ops that were posted before the plan, on all communicators that share resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpCounts {
    pub collectives: u64,
    /// Batches of sends and receives, by channel.
    pub p2p: Vec<u64>,
}

/// Node of the proxy op queue: `op_count` is relative to the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedOp {
    pub address: u64,
    pub op: ProxyOp,
    pub task: Option<TaskInfo>,
}

pub(super) fn plan(decoder: &Decoder, spans: &PlanSpans, record: &RecordView<'_>) -> Result<PlanEvent> {
    let fields = decoder.op_fields()?;
    Ok(PlanEvent {
        origin: record.origin(),
        comm: communicator(&spans.comm, record)?,
        plan: record.unsigned(&spans.plan)?,
        in_callback: spans.in_callback,
        persistent: record.unsigned(&spans.persistent)? != 0,
        by_callback: record.unsigned(&spans.by_callback)? != 0,
        channel_mask: record.unsigned(&spans.channel_mask)?,
        op_has: OpShape {
            algorithm: fields.algorithm.is_some(),
            coll_api: fields.coll_api.is_some(),
            channel_size: fields.channel_size.is_some(),
        },
        pat: decoder.plan_fields.as_ref().and_then(|fields| fields.pat),
        work_bytes: record.unsigned(&spans.work_bytes)?,
        nodes: spans
            .nodes
            .iter()
            .map(|(list, span)| {
                let word = record.unsigned(span)?;
                Ok((*list, word & !CUT, word & CUT != 0))
            })
            .collect::<Result<_, _>>()?,
        launch: match &spans.launch {
            Some(spans) => launch(decoder, spans, record)?,
            None => None,
        },
        one_sided: spans.one_sided,
    })
}

pub(super) fn node(
    decoder: &Decoder,
    spans: &PlanNodeSpans,
    record: &RecordView<'_>,
) -> Result<PlanPartEvent> {
    let fields = decoder.plan_fields.as_ref().ok_or(DecodeError::Unreadable("a plan of this library"))?;
    let bytes = record.bytes(&spans.bytes)?;
    let address = record.unsigned(&spans.address)?;
    let short = || DecodeError::Short { have: bytes.len(), want: bytes.len() + 1 };
    let part = match spans.list {
        PlanList::CollTasks => {
            PlanPart::CollTask(coll_task(decoder, fields, address, bytes).ok_or_else(short)?)
        }
        PlanList::P2pTasks => PlanPart::P2pTask(p2p_task(decoder, fields, address, bytes).ok_or_else(short)?),
        PlanList::Works => PlanPart::Work(work(&fields.work, bytes).ok_or_else(short)?),
        PlanList::Batches => PlanPart::Batch(batch(fields, bytes).ok_or_else(short)?),
        PlanList::OpCounts => PlanPart::OpCounts(op_counts(fields, bytes).ok_or_else(short)?),
        PlanList::ProxyOps => {
            let op = op(decoder.op_fields()?, &decoder.names, bytes)?;
            let task = task_of_op(spans.task.as_ref(), op.pattern, &decoder.names, record)?;
            PlanPart::ProxyOp(Box::new(QueuedOp { address, op, task }))
        }
        PlanList::OneSidedByProxy | PlanList::OneSidedByCopy => {
            let ranks = spans.ranks.and_then(|ranks| record.bytes(&ranks).ok()).unwrap_or_default();
            let by_proxy = spans.list == PlanList::OneSidedByProxy;
            let call = fields.launch.as_ref().and_then(|of| one_sided(decoder, of, by_proxy, bytes, ranks));
            PlanPart::OneSided(Box::new(call.ok_or_else(short)?))
        }
    };
    Ok(PlanPartEvent { origin: record.origin(), part })
}

fn coll_task(decoder: &Decoder, fields: &PlanFields, address: u64, bytes: &[u8]) -> Option<CollTask> {
    let (names, of) = (&decoder.names, &fields.coll_task);
    let device_op = of.device_op.of(bytes)?;
    let host_op = if fields.seen_as_sum.contains(&device_op) {
        Some(&P2P_NAMES.reduction_op)
    } else {
        names.reduction_op(of.host_op.of(bytes)?.cast_signed())
    };
    Some(CollTask {
        info: TaskInfo {
            pointer: address,
            count: Some(of.count.of(bytes)?),
            datatype: names.datatype(of.datatype.of(bytes)?.cast_signed()).cloned(),
            function: names.function(of.func.of(bytes)?.cast_signed()).cloned(),
            buffers: of
                .send_buffer
                .zip(of.recv_buffer)
                .and_then(|(send, recv)| Some([send.of(bytes)?, recv.of(bytes)?])),
            ..TaskInfo::default()
        },
        root: of.root.int_of(bytes)?,
        red_op: host_op.cloned(),
        chunk_steps: of.chunk_steps.of(bytes)?,
        slice_steps: of.slice_steps.of(bytes)?,
        algorithm: Algorithm::from_number(of.algorithm.of(bytes)?),
        protocol: Protocol::of_nccl(of.protocol.of(bytes)?),
        is_collnet: of.is_collnet.of(bytes)? != 0,
    })
}

fn p2p_task(decoder: &Decoder, fields: &PlanFields, address: u64, bytes: &[u8]) -> Option<P2pTask> {
    let (names, of) = (&decoder.names, &fields.p2p_task);
    let function = |number: u64| names.function(number.cast_signed()).cloned();
    Some(P2pTask {
        info: TaskInfo {
            pointer: address,
            p2p_bytes: Some(of.bytes.of(bytes)?),
            p2p_channels: of.n_channels.and_then(|field| field.of(bytes)),
            called: of.coll_api.and_then(|field| field.of(bytes)).and_then(function),
            buffers: of.buffer.and_then(|field| field.of(bytes)).map(|buffer| [buffer; 2]),
            ..TaskInfo::default()
        },
        function: function(of.func.of(bytes)?),
        peer: of.root.int_of(bytes)?,
    })
}

fn op_counts(fields: &PlanFields, bytes: &[u8]) -> Option<OpCounts> {
    let of = &fields.op_counts;
    let p2p = bytes.get(of.p2p_at..of.p2p_at.checked_add(of.p2p_bytes)?)?;
    Some(OpCounts {
        collectives: of.collectives.of(bytes)?,
        p2p: p2p.as_chunks().0.iter().copied().map(u64::from_le_bytes).collect(),
    })
}

fn batch(fields: &PlanFields, bytes: &[u8]) -> Option<WorkBatch> {
    let of = &fields.batch;
    let [p2p, ..] = fields.work.kinds;
    Some(WorkBatch {
        next_jump: of.next_jump.of(bytes)?,
        next_extends: of.next_extends.of(bytes)? != 0,
        is_p2p: of.kind.of(bytes)? == p2p,
        base: of.base.of(bytes)?,
        bits: of.bits.of(bytes)?,
    })
}
