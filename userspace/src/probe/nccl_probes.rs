//! Compiles, for one library, what to copy at each of NCCL's functions that we probe.
//!
//! `ncclProxySaveOp` shows the op and the communicator, `SaveProxy` each peer that it sends to or receives from, with the
//! transport. Both passes go through them (plan pass: `justInquire != NULL`). `ncclEnqueueCheck` shows the API call; it is
//! needed only where the op does not lead to its task (before 2.23).

use serde::{Deserialize, Serialize};

use super::plan_builder::{FinishedPlan, PlanBuilder, PlanError, Slot, Span};
use crate::{
    elf::FileOffset,
    symbols::{Field, Function, Layouts, Resolution},
};

/// Bytes of the API function's name that are copied.
const API_NAME_BYTES: u16 = 24;

/// Who the communicator is, read anew in every record: its address can come to mean another one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CommunicatorSpans {
    pub pointer: Span,
    pub rank: Span,
    pub n_ranks: Span,
    /// From 2.18.
    pub hash: Option<Span>,
    /// Collectives launched so far per function, u64 each; from 2.26 NCCL counts them whether a profiler plugin is
    /// loaded or not, as its reliability service reads them too (`ncclComm.seqNumber`, src/plugin/profiler.cc).
    pub launched_per_function: Option<Span>,
    /// Collectives launched so far, of all communicators that share resources; up to 2.26 counted for plans without proxy
    /// ops too (`ncclSharedResources.collOpCount`, src/enqueue.cc, uploadProxyOps).
    pub posted_collectives: Option<Span>,
}

/// The API's view of an op, reached through `ncclProxyOp.task` (2.23 and later). A union of a collective's and a p2p
/// call's task; the op's pattern says which.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct TaskSpans {
    pub pointer: Span,
    pub coll_count: Span,
    pub coll_datatype: Span,
    pub coll_function: Span,
    pub p2p_bytes: Span,
    /// Channels that a p2p call is split over; from 2.25, for the profiler.
    pub p2p_channels: Option<Span>,
}

/// Where the record of `ncclProxySaveOp` has what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ProxyOpSpans {
    pub comm: CommunicatorSpans,
    /// Address of the `ncclProxyOp`.
    pub op_pointer: Span,
    /// Zero in the post pass.
    pub just_inquire: Span,
    /// The whole `ncclProxyOp`.
    pub op: Span,
    /// `ncclRing.prev`, `next` and `index` of the op's channel.
    pub ring: [Span; 3],
    /// `ncclTree.up` and `down` (up to three) of the op's channel.
    pub tree_up: Span,
    pub tree_down: Span,
    pub task: Option<TaskSpans>,
}

/// Where the record of `SaveProxy` has what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ProxyPeerSpans {
    /// `ncclComm`; 2.18 and later have it among the parameters.
    pub comm_pointer: Option<Span>,
    pub op_pointer: Span,
    /// 0 receive, 1 send (`proxyRecv`, `proxySend`).
    pub direction: Span,
    pub peer: Span,
    pub connection_index: Span,
    pub just_inquire: Span,
    /// At this very call: PAT and grouped all-gathers change it from peer to peer.
    pub nsteps: Span,
    /// Not zero where the connector has a proxy: only then is an op posted.
    pub proxy_progress: Span,
    /// First 8 bytes of the transport's name.
    pub transport: Span,
}

/// Where the record of `ncclEnqueueCheck` has what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ApiCallSpans {
    pub comm: CommunicatorSpans,
    pub function: Span,
    pub name: Span,
    pub count: Span,
    pub datatype: Span,
    pub reduction_op: Span,
    pub root: Span,
}

/// What a probe is for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum ProbeKind {
    ProxyOp(ProxyOpSpans),
    ProxyPeer(ProxyPeerSpans),
    ApiCall(ApiCallSpans),
}

/// One probe of one library.
#[derive(Clone, Debug)]
pub struct Probe {
    /// NCCL's name of the function.
    pub function: String,
    /// The symbol that is probed, clone suffix and all.
    pub symbol: String,
    pub file_offset: FileOffset,
    pub kind: ProbeKind,
    pub plan: FinishedPlan,
}

/// A probe that this library does not allow.
#[derive(Clone, Debug, Serialize)]
pub struct MissingProbe {
    pub function: String,
    pub why: String,
    pub lost: String,
}

/// All probes of one library.
#[derive(Clone, Debug, Default)]
pub struct ProbeSet {
    pub probes: Vec<Probe>,
    pub missing: Vec<MissingProbe>,
}

/// Why a probe cannot be compiled.
#[derive(Debug)]
enum Lack {
    Field(&'static str, &'static str),
    Struct(&'static str),
    Parameter(&'static str),
    Plan(PlanError),
}

impl From<PlanError> for Lack {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Field(strukt, path) => {
                write!(f, "the library's debug information has no `{strukt}.{path}`")
            }
            Self::Struct(strukt) => write!(f, "the library's debug information has no `{strukt}`"),
            Self::Parameter(name) => write!(f, "the function has no parameter `{name}`"),
            Self::Plan(error) => write!(f, "{error}"),
        }
    }
}

type Compiled = Result<(FinishedPlan, ProbeKind), Lack>;

/// Compiles the probes that show proxy ops (`--level flow`).
pub fn compile(resolution: &Resolution) -> ProbeSet {
    let mut set = ProbeSet::default();
    let layouts = &resolution.layouts;
    add(&mut set, resolution, "ncclProxySaveOp", "every proxy op: nothing can be recorded", |function| {
        proxy_op(resolution, function)
    });
    add(&mut set, resolution, "SaveProxy", "the peers and transports of every op", |function| {
        proxy_peer(resolution, function)
    });
    if layouts.field("ncclProxyOp", "task").is_none() {
        add(
            &mut set,
            resolution,
            "ncclEnqueueCheck",
            "the API function, count and data type of ops",
            |function| api_call(resolution, function),
        );
    }
    set
}

fn add(
    set: &mut ProbeSet,
    resolution: &Resolution,
    name: &str,
    lost: &str,
    compile: impl Fn(&Function) -> Compiled,
) {
    let mut missing = |why: String| {
        set.missing.push(MissingProbe { function: name.to_owned(), why, lost: lost.to_owned() });
    };
    let functions = resolution.functions(name);
    if functions.is_empty() {
        missing("the library has no such symbol".to_owned());
    }
    for function in functions {
        match compile(function) {
            Ok((plan, kind)) => set.probes.push(Probe {
                function: name.to_owned(),
                symbol: function.symbol.clone(),
                file_offset: function.file_offset,
                kind,
                plan,
            }),
            Err(lack) => missing(lack.to_string()),
        }
    }
}

fn proxy_op(resolution: &Resolution, function: &Function) -> Compiled {
    let layouts = &resolution.layouts;
    let mut plan = PlanBuilder::new(resolution.machine);
    let comm = plan.parameter(parameter(function, "comm")?);
    let op = plan.parameter(parameter(function, "op")?);
    let just_inquire = plan.parameter(parameter(function, "justInquire")?);
    let comm_spans = communicator(&mut plan, layouts, comm)?;
    let op_pointer = plan.emit(op);
    let just_inquire = plan.emit(just_inquire);
    let op_size = layouts.struct_size("ncclProxyOp").ok_or(Lack::Struct("ncclProxyOp"))?;
    let op_span = plan.copy(op, 0, len(op_size)?);
    let channel = channel_of(&mut plan, layouts, comm, op)?;
    let mut of_channel = |path: &'static str| -> Result<Span, Lack> {
        let field = field(layouts, "ncclChannel", path)?;
        Ok(plan.copy(channel, offset(&field)?, len(field.size)?))
    };
    let ring = [of_channel("ring.prev")?, of_channel("ring.next")?, of_channel("ring.index")?];
    let (tree_up, tree_down) = (of_channel("tree.up")?, of_channel("tree.down")?);
    let task = match layouts.field("ncclProxyOp", "task") {
        Some(at) => Some(task(&mut plan, layouts, op, &at)?),
        None => None,
    };
    let spans = ProxyOpSpans {
        comm: comm_spans,
        op_pointer,
        just_inquire,
        op: op_span,
        ring,
        tree_up,
        tree_down,
        task,
    };
    Ok((plan.finish()?, ProbeKind::ProxyOp(spans)))
}

fn task(plan: &mut PlanBuilder, layouts: &Layouts, op: Slot, at: &Field) -> Result<TaskSpans, Lack> {
    let task = plan.load(op, offset(at)?, 8);
    let pointer = plan.emit(task);
    let mut copy = |strukt: &'static str, path: &'static str| -> Result<Span, Lack> {
        let field = field(layouts, strukt, path)?;
        let value = plan.load(task, offset(&field)?, len(field.size)?);
        Ok(plan.emit(value))
    };
    let p2p_channels = match layouts.field("ncclTaskP2p", "nChannels") {
        Some(_) => Some(copy("ncclTaskP2p", "nChannels")?),
        None => None,
    };
    Ok(TaskSpans {
        p2p_channels,
        coll_count: copy("ncclTaskColl", "count")?,
        coll_datatype: copy("ncclTaskColl", "datatype")?,
        coll_function: copy("ncclTaskColl", "func")?,
        p2p_bytes: copy("ncclTaskP2p", "bytes")?,
        pointer,
    })
}

fn proxy_peer(resolution: &Resolution, function: &Function) -> Compiled {
    let layouts = &resolution.layouts;
    let mut plan = PlanBuilder::new(resolution.machine);
    let op = plan.parameter(parameter(function, "op")?);
    let direction = plan.int_parameter(parameter(function, "type")?);
    let peer = plan.int_parameter(parameter(function, "peer")?);
    let connection_index = plan.int_parameter(parameter(function, "connIndex")?);
    let just_inquire = plan.parameter(parameter(function, "justInquire")?);
    let (comm_pointer, channel) = match function.param("comm") {
        Some(comm) => {
            let comm = plan.parameter(&comm.location);
            (Some(plan.emit(comm)), channel_of(&mut plan, layouts, comm, op)?)
        }
        // 2.16 and 2.17 pass the channel and not the communicator.
        None => (None, plan.parameter(parameter(function, "channel")?)),
    };

    let connector_size = signed(layouts.struct_size("ncclConnector").ok_or(Lack::Struct("ncclConnector"))?)?;
    let peers = field(layouts, "ncclChannel", "peers")?;
    let peers_pointer = plan.load(channel, offset(&peers)?, 8);
    let channel_peer = if peers.type_name.matches('*').count() >= 2 {
        let element = plan.scale(peers_pointer, peer, 8);
        plan.load(element, 0, 8)
    } else {
        let size = layouts.struct_size("ncclChannelPeer").ok_or(Lack::Struct("ncclChannelPeer"))?;
        plan.scale(peers_pointer, peer, signed(size)?)
    };
    // peer->recv[connIndex] or peer->send[connIndex], less the offset of `recv`.
    let (send, recv) = (
        offset(&field(layouts, "ncclChannelPeer", "send")?)?,
        offset(&field(layouts, "ncclChannelPeer", "recv")?)?,
    );
    let side = plan.scale(channel_peer, direction, send - recv);
    let connector = plan.scale(side, connection_index, connector_size);
    let transport_comm_at = offset(&field(layouts, "ncclConnector", "transportComm")?)?;
    let transport_comm = plan.load(connector, recv + transport_comm_at, 8);
    let progress = if let Some(at) = layouts.field("ncclConnector", "proxyConn.proxyProgress") {
        plan.load(connector, recv + offset(&at)?, 8)
    } else {
        // Before 2.19 only the transport says whether there is a proxy.
        let at = offset(&field(layouts, "ncclTransportComm", "proxyProgress")?)?;
        plan.load(transport_comm, at, 8)
    };
    // transportComm points into `struct ncclTransport { char name[8]; …; ncclTransportComm send; ncclTransportComm recv; }`.
    let (send_at, recv_at) = (
        offset(&field(layouts, "ncclTransport", "send")?)?,
        offset(&field(layouts, "ncclTransport", "recv")?)?,
    );
    let transport = plan.scale(transport_comm, direction, recv_at - send_at);
    let name_at = offset(&field(layouts, "ncclTransport", "name")?)?;
    let transport_name = plan.load(transport, name_at - recv_at, 8);
    let nsteps = field(layouts, "ncclProxyOp", "nsteps")?;
    let nsteps = plan.load(op, offset(&nsteps)?, len(nsteps.size)?);

    let spans = ProxyPeerSpans {
        comm_pointer,
        op_pointer: plan.emit(op),
        direction: plan.emit(direction),
        peer: plan.emit(peer),
        connection_index: plan.emit(connection_index),
        just_inquire: plan.emit(just_inquire),
        nsteps: plan.emit(nsteps),
        proxy_progress: plan.emit(progress),
        transport: plan.emit(transport_name),
    };
    Ok((plan.finish()?, ProbeKind::ProxyPeer(spans)))
}

fn api_call(resolution: &Resolution, function: &Function) -> Compiled {
    let layouts = &resolution.layouts;
    let mut plan = PlanBuilder::new(resolution.machine);
    let info = plan.parameter(parameter(function, "info")?);
    let comm_at = field(layouts, "ncclInfo", "comm")?;
    let comm = plan.load(info, offset(&comm_at)?, 8);
    let comm_spans = communicator(&mut plan, layouts, comm)?;
    let name_at = field(layouts, "ncclInfo", "opName")?;
    let name = plan.load(info, offset(&name_at)?, 8);
    let name = plan.copy(name, 0, API_NAME_BYTES);
    let mut copy = |path: &'static str| -> Result<Span, Lack> {
        let field = field(layouts, "ncclInfo", path)?;
        let value = plan.load(info, offset(&field)?, len(field.size)?);
        Ok(plan.emit(value))
    };
    let spans = ApiCallSpans {
        comm: comm_spans,
        function: copy("coll")?,
        count: copy("count")?,
        datatype: copy("datatype")?,
        reduction_op: copy("op")?,
        root: copy("root")?,
        name,
    };
    Ok((plan.finish()?, ProbeKind::ApiCall(spans)))
}

fn communicator(plan: &mut PlanBuilder, layouts: &Layouts, comm: Slot) -> Result<CommunicatorSpans, Lack> {
    let pointer = plan.emit(comm);
    let rank = field(layouts, "ncclComm", "rank")?;
    let n_ranks = field(layouts, "ncclComm", "nRanks")?;
    let rank = plan.copy(comm, offset(&rank)?, len(rank.size)?);
    let n_ranks = plan.copy(comm, offset(&n_ranks)?, len(n_ranks.size)?);
    let hash = match layouts.field("ncclComm", "commHash") {
        Some(hash) => Some(plan.copy(comm, offset(&hash)?, len(hash.size)?)),
        None => None,
    };
    // 2.23 to 2.25 have seqNumber, but count only while a profiler plugin is loaded. 2.26 counts always; it is the version
    // that gave ncclProxyOp its workCounter.
    let counts_always = layouts.field("ncclProxyOp", "workCounter").is_some();
    let launched = layouts.field("ncclComm", "seqNumber").filter(|_| counts_always);
    let (launched_per_function, posted_collectives) = match launched {
        Some(at) => (Some(plan.copy(comm, offset(&at)?, len(at.size)?)), None),
        None => (None, posted_collectives(plan, layouts, comm)?),
    };
    Ok(CommunicatorSpans { pointer, rank, n_ranks, hash, launched_per_function, posted_collectives })
}

fn posted_collectives(plan: &mut PlanBuilder, layouts: &Layouts, comm: Slot) -> Result<Option<Span>, Lack> {
    let (Some(shared), Some(count)) =
        (layouts.field("ncclComm", "sharedRes"), layouts.field("ncclSharedResources", "collOpCount"))
    else {
        return Ok(None);
    };
    let shared = plan.load(comm, offset(&shared)?, 8);
    let count = plan.load(shared, offset(&count)?, len(count.size)?);
    Ok(Some(plan.emit(count)))
}

/// `&comm->channels[op->channelId]`.
fn channel_of(plan: &mut PlanBuilder, layouts: &Layouts, comm: Slot, op: Slot) -> Result<Slot, Lack> {
    let id = field(layouts, "ncclProxyOp", "channelId")?;
    let channels = offset(&field(layouts, "ncclComm", "channels")?)?;
    let size = layouts.struct_size("ncclChannel").ok_or(Lack::Struct("ncclChannel"))?;
    let id = plan.load(op, offset(&id)?, len(id.size)?);
    let first = plan.offset(comm, channels);
    Ok(plan.scale(first, id, signed(size)?))
}

fn parameter<'a>(
    function: &'a Function,
    name: &'static str,
) -> Result<&'a crate::symbols::ParamLocation, Lack> {
    function.param(name).map(|param| &param.location).ok_or(Lack::Parameter(name))
}

fn field(layouts: &Layouts, strukt: &'static str, path: &'static str) -> Result<Field, Lack> {
    layouts.field(strukt, path).ok_or(Lack::Field(strukt, path))
}

fn offset(field: &Field) -> Result<i64, Lack> {
    signed(field.offset)
}

fn signed(value: u64) -> Result<i64, Lack> {
    i64::try_from(value).map_err(|_| Lack::Plan(PlanError::TooLong(usize::MAX)))
}

fn len(size: u64) -> Result<u16, Lack> {
    u16::try_from(size)
        .map_err(|_| Lack::Plan(PlanError::TooLong(usize::try_from(size).unwrap_or(usize::MAX))))
}
