//! What is copied where NCCL plans and posts an op.
//!
//! `ncclProxySaveOp` shows the op and the communicator, `SaveProxy` each peer that it sends to or receives from, with the
//! transport. Both passes go through them (plan pass: `justInquire != NULL`). `ncclEnqueueCheck` shows the API call; it is
//! needed only where the op does not lead to its task (before 2.23).

use super::{
    connector::proxy_connector,
    lookup::{Compiled, Lack, channel_of, communicator, field, len, offset, parameter, signed},
    op_work::{Passed, op_work},
    plan_builder::{PlanBuilder, Slot},
};
use flow::wire::{ApiCallSpans, CommunicatorSpans, ProbeKind, ProxyOpSpans, ProxyPeerSpans, Span, TaskSpans};
use nccl_library::elf::Machine;
use nccl_library::{
    layouts::{Field, Layouts},
    parameter::ParamLocation,
    symbols::{Function, Resolution},
};

/// Bytes of the API function's name that are copied.
const API_NAME_BYTES: u16 = 24;

/// `ncclProxySaveOp`.
pub(super) fn proxy_op(resolution: &Resolution, function: &Function) -> Compiled {
    let layouts = &resolution.layouts;
    let mut plan = PlanBuilder::new(resolution.machine);
    let comm = plan.parameter(parameter(function, "comm")?);
    let op = plan.parameter(parameter(function, "op")?);
    let just_inquire = plan.parameter(parameter(function, "justInquire")?);
    let comm_spans = communicator(&mut plan, layouts, comm)?;
    let op_pointer = plan.emit(op);
    let just_inquire_span = plan.emit(just_inquire);
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
        just_inquire: just_inquire_span,
        op: op_span,
        ring,
        tree_up,
        tree_down,
        task,
        work: op_work(&mut plan, layouts, Passed { comm, op, just_inquire })?,
    };
    Ok((plan.finish()?, ProbeKind::ProxyOp(spans)))
}

/// What the op's task says, of the op at `op`.
pub(super) fn task(
    plan: &mut PlanBuilder,
    layouts: &Layouts,
    op: Slot,
    at: &Field,
) -> Result<TaskSpans, Lack> {
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

/// `SaveProxy`.
pub(super) fn proxy_peer(resolution: &Resolution, function: &Function) -> Compiled {
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
        None => (None, channel(&mut plan, resolution, function)?),
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
    let of_proxy = proxy_connector(&mut plan, layouts, connector, recv)?;
    let progress = if let Some(progress) = of_proxy.progress {
        progress
    } else {
        // Before 2.19 only the transport says whether there is a proxy.
        let at = offset(&field(layouts, "ncclTransportComm", "proxyProgress")?)?;
        plan.copy(transport_comm, at, 8)
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
        connection: of_proxy.connection,
        proxy_progress: progress,
        owner: of_proxy.owner,
        transport: plan.emit(transport_name),
    };
    Ok((plan.finish()?, ProbeKind::ProxyPeer(spans)))
}

/// The parameter `channel` of `SaveProxy`, of 2.16 and 2.17.
fn channel(plan: &mut PlanBuilder, resolution: &Resolution, function: &Function) -> Result<Slot, Lack> {
    let location = parameter(function, "channel")?;
    let [first, second, third] = first_registers(resolution.machine).map(ParamLocation::Register);
    let pieces = function.params.iter().filter(|param| param.name == "channel").count();
    let in_pieces = !location.is_known() && pieces == 2 && *parameter(function, "type")? == third;
    if !in_pieces {
        return Ok(plan.parameter(location));
    }
    // GCC 8 passes the addresses of the two members that are used of it, `peers` and `id`, and says only that there are two
    // pieces. Each hit proves it: the two lie as far apart as the members. Where they do not, the address that is read from
    // is none, and nothing is believed.
    let layouts = &resolution.layouts;
    let peers_at = offset(&field(layouts, "ncclChannel", "peers")?)?;
    let id_at = offset(&field(layouts, "ncclChannel", "id")?)?;
    let (peers, id) = (plan.parameter(&first), plan.parameter(&second));
    let distance = plan.scale(id, peers, -1);
    let error = plan.offset(distance, peers_at - id_at);
    let channel = plan.offset(peers, -peers_at);
    Ok(plan.scale(channel, error, NOWHERE))
}

/// Odd, so that no number but 0 gives 0 when it is multiplied with it; and the first numbers give no address of a process.
const NOWHERE: i64 = 0x5555_5555_5555_5555;

/// DWARF numbers of the registers of the first three parameters.
fn first_registers(machine: Machine) -> [u16; 3] {
    match machine {
        Machine::X86_64 => [5, 4, 1],
        _ => [0, 1, 2],
    }
}

/// What `ncclEnqueueCheck` is called with.
pub(super) struct CalledInfo {
    /// Address of the `ncclInfo`.
    pub(super) info: Slot,
    pub(super) comm: Slot,
    /// Address of the name of the API's function (`ncclInfo.opName`).
    name: Slot,
    pub(super) spans: CommunicatorSpans,
}

impl CalledInfo {
    /// Copies the name of the API's function.
    pub(super) fn copy_name(&self, plan: &mut PlanBuilder) -> Span {
        plan.copy(self.name, 0, API_NAME_BYTES)
    }
}

pub(super) fn called_info(
    plan: &mut PlanBuilder,
    layouts: &Layouts,
    function: &Function,
) -> Result<CalledInfo, Lack> {
    let info = plan.parameter(parameter(function, "info")?);
    let at = |path| offset(&field(layouts, "ncclInfo", path)?);
    let words = plan.load_words(info, &[at("comm")?, at("opName")?]);
    let &[comm, name] = words.as_slice() else { return Err(Lack::Struct("ncclInfo")) };
    Ok(CalledInfo { info, comm, name, spans: communicator(plan, layouts, comm)? })
}

/// `ncclEnqueueCheck`.
pub(super) fn api_call(resolution: &Resolution, function: &Function) -> Compiled {
    let layouts = &resolution.layouts;
    let mut plan = PlanBuilder::new(resolution.machine);
    let called = called_info(&mut plan, layouts, function)?;
    let (info, name) = (called.info, called.copy_name(&mut plan));
    let mut copy = |path: &'static str| -> Result<Span, Lack> {
        let field = field(layouts, "ncclInfo", path)?;
        let value = plan.load(info, offset(&field)?, len(field.size)?);
        Ok(plan.emit(value))
    };
    let spans = ApiCallSpans {
        comm: called.spans,
        function: copy("coll")?,
        count: copy("count")?,
        datatype: copy("datatype")?,
        reduction_op: copy("op")?,
        root: copy("root")?,
        name,
    };
    Ok((plan.finish()?, ProbeKind::ApiCall(spans)))
}
