//! `ncclProxyOp`: places of its fields, and their values.

use super::{
    CommunicatorId, DecodeError, Decoder, Origin, RecordView, Result, Ring, Tree,
    channel::{ring, tree},
    communicator::communicator,
    launch::LaunchedBuffer,
    op_work,
    record::{channel, if_readable, in_range},
};
use crate::{
    schema::LaunchKind,
    wire::{ProxyOpSpans, TaskSpans},
};
use nccl_library::{
    fields::{IntField, proxy_op as op},
    nccl::{Algorithm, Name, NameTables, P2P_NAMES, Pattern, Protocol},
};

/// An `ncclProxyOp`, as far as it describes a flow. All fields are *planned*: NCCL computed them before any
/// transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyOp {
    /// NCCL's number of the op: relative to the plan in the plan pass, final in the post pass. Bit 0 is 1 for
    /// p2p.
    pub op_count: u64,
    pub channel: u32,
    /// FIFO steps of the op on its channel.
    pub nsteps: u64,
    /// Capacity of one message's slots in bytes, not bytes sent (except where rules of NCCL make it so).
    pub nbytes: i64,
    /// Bytes of a chunk.
    pub chunk_size: u64,
    pub slice_steps: u64,
    pub chunk_steps: u64,
    /// Root of a collective, peer of a p2p op.
    pub root: i32,
    pub dtype: Option<Name>,
    pub red_op: Option<Name>,
    pub pattern: Pattern,
    pub protocol: Protocol,
    pub algorithm: Option<Algorithm>,
    /// Function that NCCL runs.
    pub coll: Option<Name>,
    /// Function that was called; differs where an all-to-all runs as sends and receives.
    pub coll_api: Option<Name>,
    /// The user's buffer is registered: no copy through the FIFO.
    pub registered: bool,
    /// `nbytes` of a p2p op is the size of its part where that fits one message: 2.20 and later, the versions
    /// whose op says whether its buffer is registered.
    pub p2p_nbytes_is_size: bool,
    /// Payload bytes of this channel's part; up to 2.23 from the device work, in the plan pass.
    pub channel_size: Option<u64>,
    /// Offset of this channel's part in the payload, bytes.
    pub loop_offset: Option<u64>,
    /// Payload bytes of a rank's chunk in the last loop of a ring all-reduce: from the device work in 2.20
    /// and 2.21; later the size follows from the bytes that are left.
    pub last_chunk: Option<u64>,
    /// Payload bytes of this channel's part of a p2p call, from the device work.
    pub part_bytes: Option<u64>,
    /// Numbers of messages that are sent and received, in this order: only of grouped broadcasts
    /// (`AllGatherV`), where they differ.
    pub slices: Option<[u64; 2]>,
    /// Launch that the op stands for, which has no proxy ops.
    pub launch: Option<Box<LaunchedOp>>,
}

/// What the op that stands for a launch says beyond other ops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchedOp {
    pub kind: LaunchKind,
    pub kernel: Option<Name>,
    /// Calls that the launch serves; `None`: not known.
    pub calls: Option<u64>,
    pub bytes: Option<u64>,
    pub bytes_at_most: Option<u64>,
    pub send: LaunchedBuffer,
    pub recv: LaunchedBuffer,
}

/// A call of `ncclProxySaveOp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyOpEvent {
    pub origin: Origin,
    pub comm: CommunicatorId,
    pub op_pointer: u64,
    /// True in the plan pass, false in the post pass.
    pub plan_pass: bool,
    pub op: ProxyOp,
    pub ring: Ring,
    pub tree: Tree,
    pub task: Option<TaskInfo>,
}

/// Task of an op.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskInfo {
    /// Address of the task: the same for all channels of one call.
    pub pointer: u64,
    /// Elements of a collective, as given by the caller.
    pub count: Option<u64>,
    /// Element type of a collective, as given by the caller.
    pub datatype: Option<Name>,
    pub function: Option<Name>,
    /// Bytes of a p2p call, over all its channels.
    pub p2p_bytes: Option<u64>,
    /// Channels that a p2p call is split over.
    pub p2p_channels: Option<u64>,
    /// Function that was called, for p2p ops; 2.28 and later, where the whole plan is seen.
    pub called: Option<Name>,
    /// Addresses that the program gave, to send from and to receive into; for a p2p op they are the same.
    /// Only where the whole plan is seen.
    pub buffers: Option<[u64; 2]>,
}

/// Decodes the task of an op; `None` where it cannot be read, as the op is an op without it.
pub(super) fn task_of_op(
    spans: Option<&TaskSpans>,
    pattern: Pattern,
    names: &NameTables,
    record: &RecordView<'_>,
) -> Result<Option<TaskInfo>> {
    let Some(spans) = spans else { return Ok(None) };
    Ok(if_readable(task(spans, pattern, names, record))?.flatten())
}

fn task(
    spans: &TaskSpans,
    pattern: Pattern,
    names: &NameTables,
    record: &RecordView<'_>,
) -> Result<Option<TaskInfo>> {
    let pointer = record.unsigned(&spans.pointer)?;
    if pointer == 0 {
        return Ok(None);
    }
    let int = |span| record.int(span).map(i64::from);
    Ok(Some(if pattern.is_p2p() {
        TaskInfo {
            pointer,
            p2p_bytes: Some(record.unsigned(&spans.p2p_bytes)?),
            p2p_channels: record.optional(spans.p2p_channels.as_ref())?,
            ..TaskInfo::default()
        }
    } else {
        TaskInfo {
            pointer,
            count: Some(record.unsigned(&spans.coll_count)?),
            datatype: names.datatype(int(&spans.coll_datatype)?).cloned(),
            function: names.function(int(&spans.coll_function)?).cloned(),
            ..TaskInfo::default()
        }
    }))
}

places! {
    /// Fields of `ncclProxyOp` that events are made of. Optional ones are not in all versions: [`op`] says in
    /// which.
    pub struct ProxyOpFields {
        op_count: IntField = op::OP_COUNT;
        channel_id: IntField = op::CHANNEL_ID;
        nsteps: IntField = op::N_STEPS;
        nbytes: IntField = op::N_BYTES;
        chunk_size: IntField = op::CHUNK_SIZE;
        slice_steps: IntField = op::SLICE_STEPS;
        chunk_steps: IntField = op::CHUNK_STEPS;
        root: IntField = op::ROOT;
        dtype: IntField = op::DATATYPE;
        red_op: IntField = op::REDUCTION_OP;
        pattern: IntField = op::PATTERN;
        protocol: IntField = op::PROTOCOL;
        coll: Option<IntField> = op::COLL;
        coll_api: Option<IntField> = op::COLL_API;
        algorithm: Option<IntField> = op::ALGORITHM;
        reg: Option<IntField> = op::REGISTERED;
        channel_size: Option<IntField> = op::CHANNEL_SIZE;
        loop_offset: Option<IntField> = op::LOOP_OFFSET;
        /// `specifics.bcast.sendSlices` and `recvSlices`.
        slices: Option<[IntField; 2]> = [op::BROADCAST_SEND_SLICES, op::BROADCAST_RECV_SLICES];
    }
}

/// Decodes a record of `ncclProxySaveOp`.
pub(super) fn proxy_op(
    decoder: &Decoder,
    spans: &ProxyOpSpans,
    record: &RecordView<'_>,
) -> Result<ProxyOpEvent> {
    let names = &decoder.names;
    let mut op = op(decoder.op_fields()?, names, record.bytes(&spans.op)?)?;
    if let (Some(fields), Some(spans)) = (&decoder.op_work, &spans.work) {
        // Without its device work the op is still an op.
        if_readable(op_work::complete(&mut op, fields, spans, record))?;
    }
    let task = task_of_op(spans.task.as_ref(), op.pattern, names, record)?;
    Ok(ProxyOpEvent {
        origin: record.origin(),
        comm: communicator(&spans.comm, record)?,
        op_pointer: record.unsigned(&spans.op_pointer)?,
        plan_pass: record.unsigned(&spans.just_inquire)? != 0,
        op,
        ring: ring(&spans.ring, record)?,
        tree: tree(&spans.tree_up, &spans.tree_down, record)?,
        task,
    })
}

pub(super) fn op(fields: &ProxyOpFields, names: &NameTables, op: &[u8]) -> Result<ProxyOp> {
    let short = DecodeError::Unreadable("the proxy op");
    let unsigned = |field: IntField| field.unsigned(op).ok_or(short.clone());
    let signed = |field: IntField| field.signed(op).ok_or(short.clone());
    let number = |field: Option<IntField>| field.and_then(|field| field.unsigned(op));
    let name_number = |field: IntField| unsigned(field).map(u64::cast_signed);

    let pattern = name_number(fields.pattern)?;
    let pattern = names
        .pattern(pattern)
        .ok_or(DecodeError::UnknownValue { what: "communication pattern", value: pattern })?;
    let (protocol, root) = (unsigned(fields.protocol)?, signed(fields.root)?);
    let function = |field| number(field).and_then(|value: u64| names.function(value.cast_signed())).cloned();
    // In ops of other functions the same place holds something else.
    let is_grouped = function(fields.coll).as_deref() == Some("AllGatherV") && !pattern.is_p2p();
    let slices = fields.slices.filter(|_| is_grouped);
    Ok(ProxyOp {
        op_count: unsigned(fields.op_count)?,
        channel: channel(unsigned(fields.channel_id)?)?,
        nsteps: unsigned(fields.nsteps)?,
        nbytes: signed(fields.nbytes)?,
        chunk_size: unsigned(fields.chunk_size)?,
        slice_steps: unsigned(fields.slice_steps)?,
        chunk_steps: unsigned(fields.chunk_steps)?,
        root: in_range("root", root)?,
        dtype: names.datatype(name_number(fields.dtype)?).cloned(),
        red_op: names.reduction_op(name_number(fields.red_op)?).cloned(),
        pattern,
        protocol: Protocol::of_nccl(protocol)
            .ok_or(DecodeError::UnknownValue { what: "protocol", value: protocol.cast_signed() })?,
        // NCCL leaves the algorithm 0 in a p2p op, which would read as a tree.
        algorithm: number(fields.algorithm).filter(|_| !pattern.is_p2p()).and_then(Algorithm::from_number),
        // Up to 2.22 `coll` of every p2p op is 0; the pattern says whether it sends.
        coll: match pattern {
            Pattern::Send => Some(P2P_NAMES.send.clone()),
            Pattern::Recv => Some(P2P_NAMES.recv.clone()),
            _ => function(fields.coll),
        },
        coll_api: function(fields.coll_api),
        registered: number(fields.reg).is_some_and(|reg| reg != 0),
        p2p_nbytes_is_size: fields.reg.is_some(),
        channel_size: number(fields.channel_size),
        loop_offset: number(fields.loop_offset),
        slices: match slices {
            Some([sent, received]) => Some([unsigned(sent)?, unsigned(received)?]),
            None => None,
        },
        ..ProxyOp::default()
    })
}
