//! Events: what a record says, in NCCL's terms and with names instead of numbers.

use nccl_library::nccl::Direction;
use serde::Serialize;

use super::{
    DecodeError, Decoder, ProxyOpFields, ProxyOwner, RecordView, op_work, proxy_owner::proxy_owner,
    record::channel, text::function_name,
};
use crate::wire::{ApiCallSpans, CommunicatorSpans, ProxyOpSpans, ProxyPeerSpans, TaskSpans};
use nccl_library::{
    fields::IntField,
    nccl::{Algorithm, Name, NameTables, P2P_NAMES, Pattern, Protocol, Transport},
};

/// When and where a record was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub ts_ns: u64,
    /// Process id in the initial PID namespace.
    pub tgid: u32,
    /// Thread id in the initial PID namespace.
    pub tid: u32,
    /// Records of the process that were lost before this one, in the kernel and since.
    pub lost: u64,
}

/// A communicator as one of its ranks' processes has it at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommunicatorId {
    /// Address of the `ncclComm`; can be another communicator's after this one is destroyed.
    pub pointer: u64,
    /// Equal on all ranks; `None` before 2.18.
    pub hash: Option<u64>,
    pub rank: i32,
    pub n_ranks: i32,
    /// How many collectives NCCL says were launched on it so far (see [`CommunicatorSpans`]).
    pub launched: Option<u64>,
}

/// An `ncclProxyOp`, as far as it describes a flow. All fields are *planned*: NCCL computed them before any
/// transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyOp {
    /// In the plan pass relative to the plan; final in the post pass. Bit 0 is 1 for p2p.
    pub op_count: u64,
    pub channel: u32,
    /// FIFO steps.
    pub nsteps: u64,
    /// Capacity of one message's slots in bytes, not bytes sent (except where NCCL-specific rules make it
    /// so).
    pub nbytes: i64,
    /// Bytes.
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
    /// The function NCCL runs.
    pub coll: Option<Name>,
    /// The function that was called, where it differs (an all-to-all runs as sends and receives).
    pub coll_api: Option<Name>,
    /// The user's buffer is registered: no copy through the FIFO.
    pub registered: bool,
    /// `nbytes` of a p2p op is the size of its part where that fits one message: 2.20 and later, the versions
    /// whose op says whether its buffer is registered.
    pub p2p_nbytes_is_size: bool,
    /// Payload bytes of this channel's part. Up to 2.23 it is the device work that says it, in the plan pass.
    pub channel_size: Option<u64>,
    /// Offset of this channel's part in the payload, bytes.
    pub loop_offset: Option<u64>,
    /// Payload bytes of a rank's chunk in the last loop of a ring all-reduce: in 2.20 and 2.21 the device
    /// work says it, later it follows from what is left.
    pub last_chunk: Option<u64>,
    /// Payload bytes of this channel's part of a p2p call, from the device work.
    pub part_bytes: Option<u64>,
    /// Of grouped broadcasts (`AllGatherV`), which send and receive different numbers of messages: both, in
    /// this order.
    pub slices: Option<[u64; 2]>,
}

/// What the op's task says.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

/// This rank's place in a channel's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    pub prev: i32,
    pub next: i32,
    /// Position of this rank, counted along the ring.
    pub index: i32,
}

/// This rank's place in a channel's tree. -1: there is no such rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    pub up: i32,
    /// `NCCL_MAX_TREE_ARITY` is 3 in every version from 2.16 to 2.32.
    pub down: [i32; 3],
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

/// A call of `SaveProxy`: one peer of the op of the enclosing `ncclProxySaveOp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyPeerEvent {
    pub origin: Origin,
    pub op_pointer: u64,
    pub direction: Direction,
    /// Negative: the tree or chain ends here, and NCCL does nothing.
    pub peer: i32,
    pub connection_index: i32,
    pub plan_pass: bool,
    /// FIFO steps to or from this peer; `None` where a walked plan does not tell (PAT).
    pub nsteps: Option<u64>,
    /// Address of the `ncclProxyConnection`.
    pub connection: u64,
    /// The connection has a proxy, so the op is needed, and in the post pass really queued.
    pub has_proxy: bool,
    /// The rank whose proxy serves it; `None` before 2.18, which does not say it, and without a peer.
    pub owner: Option<ProxyOwner>,
    /// `NET`, `P2P`, `SHM`, `COL` …; empty where it could not be read.
    pub transport: Transport,
}

/// A call of `ncclEnqueueCheck`: every collective and p2p call of the API comes through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiCallEvent {
    pub origin: Origin,
    pub comm: CommunicatorId,
    /// `AllReduce`, `Send` …
    pub name: Name,
    pub function: Option<Name>,
    pub count: u64,
    pub datatype: Option<Name>,
    pub red_op: Option<Name>,
    /// Root of a collective, peer of a p2p call.
    pub root: i32,
}

/// One decoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    ProxyOp(Box<ProxyOpEvent>),
    ProxyPeer(ProxyPeerEvent),
    ApiCall(ApiCallEvent),
    ApiLine(Box<super::ApiLineEvent>),
    ApiEntry(super::ApiEntryEvent),
    ApiReturn(super::ApiReturnEvent),
    ProxyStep(super::ProxyStepEvent),
    SendSize(super::SendSizeEvent),
    PlanPart(super::PlanPartEvent),
    Plan(Box<super::PlanEvent>),
}

pub(super) fn origin(record: &RecordView<'_>) -> Origin {
    Origin {
        ts_ns: record.header.ts_ns,
        tgid: record.header.tgid,
        tid: record.header.tid,
        lost: record.header.lost,
    }
}

pub(super) fn communicator(
    spans: &CommunicatorSpans,
    record: &RecordView<'_>,
) -> Result<CommunicatorId, DecodeError> {
    let launched = match (&spans.launched_per_function, &spans.posted_collectives) {
        (Some(span), _) => {
            let (counts, _) = record.bytes(span)?.as_chunks();
            Some(counts.iter().copied().map(u64::from_le_bytes).fold(0, u64::wrapping_add))
        }
        (None, Some(span)) => Some(record.unsigned(span)?),
        (None, None) => None,
    };
    let id = CommunicatorId {
        pointer: record.unsigned(&spans.pointer)?,
        hash: spans.hash.as_ref().map(|span| record.unsigned(span)).transpose()?,
        rank: record.int(&spans.rank)?,
        n_ranks: record.int(&spans.n_ranks)?,
        launched,
    };
    // All three are zero when the memory could not be read, and nRanks never is for a communicator in use.
    if id.n_ranks <= 0 || id.rank < 0 || id.rank >= id.n_ranks {
        return Err(DecodeError::Unreadable("the communicator"));
    }
    Ok(id)
}

/// Decodes a record of `ncclProxySaveOp`.
pub(super) fn proxy_op(
    decoder: &Decoder,
    spans: &ProxyOpSpans,
    record: &RecordView<'_>,
) -> Result<ProxyOpEvent, DecodeError> {
    let names = &decoder.names;
    let mut op = op(&decoder.op_fields, names, record.bytes(&spans.op)?)?;
    if let (Some(fields), Some(spans)) = (&decoder.op_work, &spans.work) {
        match op_work::complete(&mut op, fields, spans, record) {
            // The op is itself without it.
            Ok(()) | Err(DecodeError::Unreadable(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let task = match &spans.task {
        // What the caller gave is good to know; the op is itself without it.
        Some(task) => match task_info(task, op.pattern, names, record) {
            Err(DecodeError::Unreadable(_)) => None,
            info => info?,
        },
        None => None,
    };
    Ok(ProxyOpEvent {
        origin: origin(record),
        comm: communicator(&spans.comm, record)?,
        op_pointer: record.unsigned(&spans.op_pointer)?,
        plan_pass: record.unsigned(&spans.just_inquire)? != 0,
        op,
        ring: ring(spans, record)?,
        tree: tree(spans, record)?,
        task,
    })
}

fn ring(spans: &ProxyOpSpans, record: &RecordView<'_>) -> Result<Ring, DecodeError> {
    let [prev, next, index] = &spans.ring;
    Ok(Ring { prev: record.int(prev)?, next: record.int(next)?, index: record.int(index)? })
}

fn tree(spans: &ProxyOpSpans, record: &RecordView<'_>) -> Result<Tree, DecodeError> {
    Ok(Tree { up: record.int(&spans.tree_up)?, down: record.ints(&spans.tree_down)? })
}

pub(super) fn op(fields: &ProxyOpFields, names: &NameTables, op: &[u8]) -> Result<ProxyOp, DecodeError> {
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
    // Their place is that of other things in ops of other functions.
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
        root: i32::try_from(root).map_err(|_| DecodeError::UnknownValue { what: "root", value: root })?,
        dtype: names.datatype(name_number(fields.dtype)?).cloned(),
        red_op: names.reduction_op(name_number(fields.red_op)?).cloned(),
        pattern,
        protocol: Protocol::from_number(protocol)
            .ok_or(DecodeError::UnknownValue { what: "protocol", value: protocol.cast_signed() })?,
        // NCCL leaves it 0 in a p2p op, which would read as a tree.
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
        last_chunk: None,
        part_bytes: None,
        slices: match slices {
            Some([sent, received]) => Some([unsigned(sent)?, unsigned(received)?]),
            None => None,
        },
    })
}

pub(super) fn task_info(
    spans: &TaskSpans,
    pattern: Pattern,
    names: &NameTables,
    record: &RecordView<'_>,
) -> Result<Option<TaskInfo>, DecodeError> {
    let pointer = record.unsigned(&spans.pointer)?;
    if pointer == 0 {
        return Ok(None);
    }
    let int = |span| record.int(span).map(i64::from);
    Ok(Some(if pattern.is_p2p() {
        let p2p_bytes = Some(record.unsigned(&spans.p2p_bytes)?);
        let p2p_channels = spans.p2p_channels.as_ref().map(|span| record.unsigned(span)).transpose()?;
        TaskInfo { pointer, count: None, datatype: None, function: None, p2p_bytes, p2p_channels }
    } else {
        TaskInfo {
            pointer,
            count: Some(record.unsigned(&spans.coll_count)?),
            datatype: names.datatype(int(&spans.coll_datatype)?).cloned(),
            function: names.function(int(&spans.coll_function)?).cloned(),
            p2p_bytes: None,
            p2p_channels: None,
        }
    }))
}

/// Decodes a record of `SaveProxy`.
pub(super) fn proxy_peer(
    spans: &ProxyPeerSpans,
    record: &RecordView<'_>,
) -> Result<ProxyPeerEvent, DecodeError> {
    let direction = match record.int(&spans.direction)? {
        0 => Direction::Recv,
        1 => Direction::Send,
        other => return Err(DecodeError::UnknownValue { what: "direction", value: other.into() }),
    };
    let peer = record.int(&spans.peer)?;
    let nsteps = record.int(&spans.nsteps)?;
    // Without a peer NCCL does nothing, and there is no connection to read.
    let (connection, has_proxy, owner, transport) = if peer < 0 {
        (0, false, None, Transport::default())
    } else {
        let has_proxy = record.unsigned(&spans.proxy_progress)? != 0;
        let owner = spans.owner.as_ref().map(|spans| proxy_owner(spans, record)).transpose()?;
        (
            record.unsigned(&spans.connection)?,
            has_proxy,
            owner,
            Transport::from_bytes(record.bytes(&spans.transport)?),
        )
    };
    Ok(ProxyPeerEvent {
        origin: origin(record),
        op_pointer: record.unsigned(&spans.op_pointer)?,
        direction,
        peer,
        connection_index: record.int(&spans.connection_index)?,
        plan_pass: record.unsigned(&spans.just_inquire)? != 0,
        nsteps: Some(
            u64::try_from(nsteps)
                .map_err(|_| DecodeError::UnknownValue { what: "number of steps", value: nsteps.into() })?,
        ),
        connection,
        has_proxy,
        owner,
        transport,
    })
}

/// Decodes a record of `ncclEnqueueCheck`.
pub(super) fn api_call(
    spans: &ApiCallSpans,
    names: &NameTables,
    record: &RecordView<'_>,
) -> Result<ApiCallEvent, DecodeError> {
    let int = |span| record.int(span).map(i64::from);
    Ok(ApiCallEvent {
        origin: origin(record),
        comm: communicator(&spans.comm, record)?,
        name: function_name(names, record.bytes(&spans.name)?),
        function: names.function(int(&spans.function)?).cloned(),
        count: record.unsigned(&spans.count)?,
        datatype: names.datatype(int(&spans.datatype)?).cloned(),
        red_op: names.reduction_op(int(&spans.reduction_op)?).cloned(),
        root: record.int(&spans.root)?,
    })
}
