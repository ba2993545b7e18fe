//! Probes on functions that plan and post an op.
//!
//! `ncclProxySaveOp` shows the op and the communicator, `SaveProxy` each peer that it sends to or receives
//! from, with the transport. Both passes go through them (plan pass: `justInquire != NULL`).
//! `ncclEnqueueCheck` shows the API call; it is needed only where the op does not lead to its task (before
//! 2.23).

use super::{
    connector::proxy_connector,
    error::PlanError,
    lookup::{
        Compiled, channel_of, communicator, emit_field, len, load, offset_of, parameter, place_of, signed,
    },
    op_work::{Passed, op_work},
    plan_builder::{PlanBuilder, Slot},
};
use flow::wire::{ApiCallSpans, CommunicatorSpans, ProbeKind, ProxyOpSpans, ProxyPeerSpans, Span, TaskSpans};
use nccl_library::{
    fields::{
        FieldRef, channel, channel_peer, connector, info, ops_lead_to_tasks, peers_are_pointers, proxy_op,
        task_coll, task_p2p, transport, transport_comm,
    },
    layouts::Layouts,
    parameter::ParamLocation,
    symbols::{Function, Resolution, argument_registers},
};

/// Bytes that are copied of the API function's name.
const API_NAME_BYTES: u16 = 24;

/// Compiles the probe on `ncclProxySaveOp`.
pub(super) fn proxy_op(resolution: &Resolution, function: &Function) -> Compiled {
    let layouts = &resolution.layouts;
    let mut plan = PlanBuilder::new(resolution.machine);
    let comm = plan.parameter(parameter(function, "comm")?);
    let op = plan.parameter(parameter(function, "op")?);
    let just_inquire = plan.parameter(parameter(function, "justInquire")?);
    let comm_spans = communicator(&mut plan, resolution, comm)?;
    let op_pointer = plan.emit(op);
    let just_inquire_span = plan.emit(just_inquire);
    let op_span = plan.copy(op, 0, len(proxy_op::STRUCT.size(layouts)?)?);
    let channel = channel_of(&mut plan, layouts, comm, op)?;
    let mut of_channel = |field| -> Result<Span, PlanError> {
        let (offset, len) = place_of(layouts, field)?;
        Ok(plan.copy(channel, offset, len))
    };
    let ring =
        [of_channel(channel::RING_PREV)?, of_channel(channel::RING_NEXT)?, of_channel(channel::RING_INDEX)?];
    let (tree_up, tree_down) = (of_channel(channel::TREE_UP)?, of_channel(channel::TREE_DOWN)?);
    let task = if ops_lead_to_tasks(layouts) { Some(task(&mut plan, layouts, op)?) } else { None };
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
    Ok((plan.finish()?, ProbeKind::ProxyOp(spans), None))
}

/// Copies what the task of the op at `op` says.
pub(super) fn task(plan: &mut PlanBuilder, layouts: &Layouts, op: Slot) -> Result<TaskSpans, PlanError> {
    let task = plan.load(op, offset_of(layouts, proxy_op::TASK)?, 8);
    let pointer = plan.emit(task);
    let p2p_channels = task_p2p::N_CHANNELS.find(layouts);
    let p2p_channels = p2p_channels.map(|field| emit_field(plan, task, &field)).transpose()?;
    let mut copy = |field: FieldRef| emit_field(plan, task, &field.need(layouts)?);
    Ok(TaskSpans {
        p2p_channels,
        coll_count: copy(task_coll::COUNT)?,
        coll_datatype: copy(task_coll::DATATYPE)?,
        coll_function: copy(task_coll::FUNC)?,
        p2p_bytes: copy(task_p2p::BYTES)?,
        pointer,
    })
}

/// Compiles the probe on `SaveProxy`.
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

    let connector_size = signed(connector::STRUCT.size(layouts)?)?;
    let peers = plan.load(channel, offset_of(layouts, channel::PEERS)?, 8);
    let channel_peer = if peers_are_pointers(layouts) {
        let element = plan.scale(peers, peer, 8);
        plan.load(element, 0, 8)
    } else {
        plan.scale(peers, peer, signed(channel_peer::STRUCT.size(layouts)?)?)
    };
    // peer->recv[connIndex] or peer->send[connIndex], less the offset of `recv`.
    let (send, recv) = (offset_of(layouts, channel_peer::SEND)?, offset_of(layouts, channel_peer::RECV)?);
    let side = plan.scale(channel_peer, direction, send - recv);
    let connector = plan.scale(side, connection_index, connector_size);
    let transport_comm = plan.load(connector, recv + offset_of(layouts, connector::TRANSPORT_COMM)?, 8);
    let of_proxy = proxy_connector(&mut plan, layouts, connector, recv)?;
    let progress = if let Some(progress) = of_proxy.progress {
        progress
    } else {
        // Before 2.19 only the transport says whether there is a proxy.
        plan.copy(transport_comm, offset_of(layouts, transport_comm::PROXY_PROGRESS)?, 8)
    };
    // `transportComm` points to the transport's `send` or `recv`.
    let (send_at, recv_at) = (offset_of(layouts, transport::SEND)?, offset_of(layouts, transport::RECV)?);
    let transport = plan.scale(transport_comm, direction, recv_at - send_at);
    let transport_name = plan.load(transport, offset_of(layouts, transport::NAME)? - recv_at, 8);
    let nsteps = load(&mut plan, layouts, op, proxy_op::N_STEPS)?;

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
    Ok((plan.finish()?, ProbeKind::ProxyPeer(spans), None))
}

/// Returns the parameter `channel` of `SaveProxy`, in 2.16 and 2.17.
fn channel(plan: &mut PlanBuilder, resolution: &Resolution, function: &Function) -> Result<Slot, PlanError> {
    let location = parameter(function, "channel")?;
    let registers = argument_registers(resolution.machine).first_chunk().copied().unwrap_or([0, 1, 2]);
    let [first, second, third] = registers.map(ParamLocation::Register);
    let pieces = function.params.iter().filter(|param| param.name == "channel").count();
    let in_pieces = !location.is_known() && pieces == 2 && *parameter(function, "type")? == third;
    if !in_pieces {
        return Ok(plan.parameter(location));
    }
    // GCC 8 passes the addresses of the two members that are used of the struct, `peers` and `id`, and the
    // debug information says only that there are two pieces. Each hit proves it: the two lie as far apart as
    // the members. Where they do not, the computed address is none of the process, and the record is not
    // believed.
    let layouts = &resolution.layouts;
    let (peers_at, id_at) = (offset_of(layouts, channel::PEERS)?, offset_of(layouts, channel::ID)?);
    let (peers, id) = (plan.parameter(&first), plan.parameter(&second));
    let distance = plan.scale(id, peers, -1);
    let error = plan.offset(distance, peers_at - id_at);
    let channel = plan.offset(peers, -peers_at);
    Ok(plan.scale(channel, error, NOWHERE))
}

/// Odd number, so that only 0 gives 0 when multiplied with it. Its first multiples are no addresses of a
/// process.
const NOWHERE: i64 = 0x5555_5555_5555_5555;

/// Argument of `ncclEnqueueCheck`, followed to the communicator.
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

/// Loads what the parameter of `ncclEnqueueCheck` leads to.
pub(super) fn called_info(
    plan: &mut PlanBuilder,
    resolution: &Resolution,
    function: &Function,
) -> Result<CalledInfo, PlanError> {
    let layouts = &resolution.layouts;
    let info = plan.parameter(parameter(function, "info")?);
    let offsets = [offset_of(layouts, info::COMM)?, offset_of(layouts, info::OP_NAME)?];
    let words = plan.load_words(info, &offsets);
    let &[comm, name] = words.as_slice() else { return Err(info::STRUCT.missing().into()) };
    Ok(CalledInfo { info, comm, name, spans: communicator(plan, resolution, comm)? })
}

/// Compiles the probe on `ncclEnqueueCheck` that shows the call of ops which do not lead to their task.
pub(super) fn api_call(resolution: &Resolution, function: &Function) -> Compiled {
    let layouts = &resolution.layouts;
    let mut plan = PlanBuilder::new(resolution.machine);
    let called = called_info(&mut plan, resolution, function)?;
    let (info, name) = (called.info, called.copy_name(&mut plan));
    let mut copy = |field: FieldRef| emit_field(&mut plan, info, &field.need(layouts)?);
    let spans = ApiCallSpans {
        comm: called.spans,
        function: copy(info::COLL)?,
        count: copy(info::COUNT)?,
        datatype: copy(info::DATATYPE)?,
        reduction_op: copy(info::REDUCTION_OP)?,
        root: copy(info::ROOT)?,
        name,
    };
    Ok((plan.finish()?, ProbeKind::ApiCall(spans), None))
}
