//! Probes on functions that plan and post an op.
//!
//! `ncclProxySaveOp` shows the op and the communicator, `SaveProxy` each peer that it sends to or receives
//! from, with the transport. Both passes go through them (plan pass: `justInquire != NULL`).
//! `ncclEnqueueCheck` shows the API call; it is needed only where the op does not lead to its task (before
//! 2.23).

use super::{
    connector::proxy_connector,
    lookup::Compiled,
    op_work::op_work,
    plan_builder::{PlanBuilder, Slot},
};
use flow::wire::{ApiCallSpans, CommunicatorSpans, ProbeKind, ProxyOpSpans, ProxyPeerSpans, Span, TaskSpans};
use nccl_library::{
    fields::{
        channel, channel_peer, connector, info, ops_lead_to_tasks, peers_are_pointers, proxy_op, task_coll,
        task_p2p, transport, transport_comm,
    },
    parameter::ParamLocation,
    symbols::{Function, Resolution, argument_registers},
};

/// Bytes that are copied of the API function's name.
const API_NAME_BYTES: u16 = 24;

/// Compiles the probe on `ncclProxySaveOp`.
pub(super) fn proxy_op(resolution: &Resolution, function: &Function) -> Compiled {
    let mut plan = PlanBuilder::new(resolution);
    let comm = plan.parameter(function, "comm");
    let op = plan.parameter(function, "op");
    let just_inquire = plan.parameter(function, "justInquire");
    let comm_spans = plan.communicator(resolution, comm);
    let op_pointer = plan.emit(op);
    let just_inquire_span = plan.emit(just_inquire);
    let op_size = plan.size_of(proxy_op::STRUCT);
    let op_span = plan.copy(op, 0, op_size);
    let channel = plan.channel_of(comm, op);
    let spans = ProxyOpSpans {
        comm: comm_spans,
        op_pointer,
        just_inquire: just_inquire_span,
        op: op_span,
        ring: [channel::RING_PREV, channel::RING_NEXT, channel::RING_INDEX]
            .map(|field| plan.copy_field(channel, field)),
        tree_up: plan.copy_field(channel, channel::TREE_UP),
        tree_down: plan.copy_field(channel, channel::TREE_DOWN),
        task: ops_lead_to_tasks(plan.layouts).then(|| task(&mut plan, op)),
        work: op_work(&mut plan, comm, op, just_inquire),
    };
    plan.compiled(ProbeKind::ProxyOp(spans))
}

/// Copies what the task of the op at `op` says.
pub(super) fn task(plan: &mut PlanBuilder<'_>, op: Slot) -> TaskSpans {
    let task = plan.load_pointer(op, proxy_op::TASK);
    TaskSpans {
        pointer: plan.emit(task),
        p2p_channels: plan.emit_if_there(task, task_p2p::N_CHANNELS),
        coll_count: plan.emit_field(task, task_coll::COUNT),
        coll_datatype: plan.emit_field(task, task_coll::DATATYPE),
        coll_function: plan.emit_field(task, task_coll::FUNC),
        p2p_bytes: plan.emit_field(task, task_p2p::BYTES),
    }
}

/// Compiles the probe on `SaveProxy`.
pub(super) fn proxy_peer(resolution: &Resolution, function: &Function) -> Compiled {
    let mut plan = PlanBuilder::new(resolution);
    let op = plan.parameter(function, "op");
    let direction = plan.int_parameter(function, "type");
    let peer = plan.int_parameter(function, "peer");
    let connection_index = plan.int_parameter(function, "connIndex");
    let just_inquire = plan.parameter(function, "justInquire");
    let (comm_pointer, channel) = if function.param("comm").is_some() {
        let comm = plan.parameter(function, "comm");
        (Some(plan.emit(comm)), plan.channel_of(comm, op))
    } else {
        // 2.16 and 2.17 pass the channel and not the communicator.
        (None, channel(&mut plan, resolution, function))
    };

    let connector_size = plan.size_of(connector::STRUCT);
    let peers = plan.load_pointer(channel, channel::PEERS);
    let channel_peer = if peers_are_pointers(plan.layouts) {
        let element = plan.scale(peers, peer, 8);
        plan.load(element, 0, 8)
    } else {
        let size = plan.size_of(channel_peer::STRUCT);
        plan.scale(peers, peer, size)
    };
    // peer->recv[connIndex] or peer->send[connIndex], less the offset of `recv`.
    let [send, recv]: [i64; 2] = [channel_peer::SEND, channel_peer::RECV].map(|field| plan.offset_of(field));
    let side = plan.scale(channel_peer, direction, send - recv);
    let connector = plan.scale(side, connection_index, connector_size);
    let comm_at: i64 = plan.offset_of(connector::TRANSPORT_COMM);
    let transport_comm = plan.load(connector, recv + comm_at, 8);
    let of_proxy = proxy_connector(&mut plan, connector, recv);
    let progress = of_proxy.progress.unwrap_or_else(|| {
        // Before 2.19 only the transport says whether there is a proxy.
        let at = plan.offset_of(transport_comm::PROXY_PROGRESS);
        plan.copy(transport_comm, at, 8)
    });
    // `transportComm` points to the transport's `send` or `recv`.
    let [send_at, recv_at, name_at]: [i64; 3] =
        [transport::SEND, transport::RECV, transport::NAME].map(|field| plan.offset_of(field));
    let transport = plan.scale(transport_comm, direction, recv_at - send_at);
    let transport_name = plan.load(transport, name_at - recv_at, 8);
    let nsteps = plan.load_field(op, proxy_op::N_STEPS);

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
    plan.compiled(ProbeKind::ProxyPeer(spans))
}

/// Returns the parameter `channel` of `SaveProxy`, in 2.16 and 2.17.
fn channel(plan: &mut PlanBuilder<'_>, resolution: &Resolution, function: &Function) -> Slot {
    let registers = argument_registers(resolution.machine).first_chunk().copied().unwrap_or([0, 1, 2]);
    let [first, second, third] = registers.map(ParamLocation::Register);
    let pieces = function.params.iter().filter(|param| param.name == "channel").count();
    let location = |name| function.param(name).map(|param| &param.location);
    let is_unknown = location("channel").is_some_and(|channel| !channel.is_known());
    if !is_unknown || pieces != 2 || location("type") != Some(&third) {
        return plan.parameter(function, "channel");
    }
    // GCC 8 passes the addresses of the two members that are used of the struct, `peers` and `id`, and the
    // debug information says only that there are two pieces. Each hit proves it: the two lie as far apart as
    // the members. Where they do not, the computed address is none of the process, and the record is not
    // believed.
    let [peers_at, id_at]: [i64; 2] = [channel::PEERS, channel::ID].map(|field| plan.offset_of(field));
    let (peers, id) = (plan.value_at(&first), plan.value_at(&second));
    let distance = plan.scale(id, peers, -1);
    let error = plan.offset(distance, peers_at - id_at);
    let channel = plan.offset(peers, -peers_at);
    plan.scale(channel, error, NOWHERE)
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
    pub(super) fn copy_name(&self, plan: &mut PlanBuilder<'_>) -> Span {
        plan.copy(self.name, 0, API_NAME_BYTES)
    }
}

/// Loads what the parameter of `ncclEnqueueCheck` leads to.
pub(super) fn called_info(
    plan: &mut PlanBuilder<'_>,
    resolution: &Resolution,
    function: &Function,
) -> CalledInfo {
    let info = plan.parameter(function, "info");
    let [comm, name] = plan.load_pointers(info, [info::COMM, info::OP_NAME]);
    CalledInfo { info, comm, name, spans: plan.communicator(resolution, comm) }
}

/// Compiles the probe on `ncclEnqueueCheck` that shows the call of ops which do not lead to their task.
pub(super) fn api_call(resolution: &Resolution, function: &Function) -> Compiled {
    let mut plan = PlanBuilder::new(resolution);
    let called = called_info(&mut plan, resolution, function);
    let (info, name) = (called.info, called.copy_name(&mut plan));
    let spans = ApiCallSpans {
        comm: called.spans,
        function: plan.emit_field(info, info::COLL),
        count: plan.emit_field(info, info::COUNT),
        datatype: plan.emit_field(info, info::DATATYPE),
        reduction_op: plan.emit_field(info, info::REDUCTION_OP),
        root: plan.emit_field(info, info::ROOT),
        name,
    };
    plan.compiled(ProbeKind::ApiCall(spans))
}
