//! Probes on functions through which the network proxy tells that a message is a step further.
//!
//! NCCL calls its profiler's hooks for every message whether a plugin is loaded or not: src/transport/net.cc
//! calls src/plugin/profiler.cc (2.26 and later) or src/misc/profiler.cc, and the test for a plugin is
//! inside. There are three eras: up to 2.22 one function that does nothing, called for each FIFO step; 2.23 a
//! function per moment, called with a range of steps; from 2.24 with the first step of the message. The
//! probes' places are found by [`super::step_places`].

use super::{
    lookup::Compiled,
    plan_builder::{PlanBuilder, Slot},
};
use flow::wire::{ProbeKind, ProxyStepSpans, SlotSizesSpans, StepHook};
use nccl_library::{
    fields::{conn_fifo, proxy_args, proxy_connection, proxy_sub_args, recv_mem, send_net_resources},
    nccl::{FIFO_STEPS, NameTables},
    symbols::{Function, Resolution},
};

/// The hooks of an era, and what each one shows.
pub(super) type Era = &'static [(&'static str, StepHook)];

/// The eras, the latest first. The hooks at which a message begins (`ncclProfilerStart…`) are left alone:
/// that of a send is followed at once by the state `SendGPUWait`, and that of a receive repeats at the rate
/// of the proxy's poll loop.
const ERAS: [Era; 3] = [
    &[
        ("ncclProfilerRecordProxyStepEventState", StepHook::State),
        ("ncclProfilerStopProxyStepEvent", StepHook::Stop),
    ],
    &[
        ("ncclProfilerRecordProxyStepEventStates", StepHook::State),
        ("ncclProfilerStopProxyStepEvents", StepHook::Stop),
    ],
    &[("ncclProfilingRecord", StepHook::Record)],
];

/// Returns the era of this library: the first whose functions it has, or the latest, to say what is missing.
pub(super) fn era(resolution: &Resolution) -> Era {
    let has_any = |era: &Era| era.iter().any(|(name, _)| !resolution.functions(name).is_empty());
    ERAS.into_iter().find(has_any).unwrap_or(ERAS[0])
}

/// Returns the name of the parameter with the state that a message enters.
pub(super) fn state_parameter(hook: StepHook) -> Option<&'static str> {
    match hook {
        StepHook::State => Some("eState"),
        StepHook::Record => Some("state"),
        StepHook::Stop => None,
    }
}

/// Compiles the probe on one of the hooks. `in_send`: only sends pass the probe.
pub(super) fn proxy_step(
    resolution: &Resolution,
    function: &Function,
    hook: StepHook,
    in_send: bool,
) -> Compiled {
    let mut plan = PlanBuilder::new(resolution);
    let record = hook == StepHook::Record;
    let sub_index = plan.int_parameter(function, if record { "sub" } else { "s" });
    let args = plan.parameter(function, "args");
    let step = ["stepId", "stepLo", "step"].into_iter().find(|name| function.param(name).is_some());
    let step = plan.int_parameter(function, step.unwrap_or("stepId"));
    let state = state_parameter(hook).map(|name| plan.int_parameter(function, name));
    let sub_size = plan.size_of(proxy_sub_args::STRUCT);
    let subs = plan.offset_of(proxy_args::SUBS);
    let first = if subs == 0 { args } else { plan.offset(args, subs) };
    let sub = plan.scale(first, sub_index, sub_size);
    // A step of the plan costs the target some 25 ns: fields that lie near each other are copied at once.
    let ([op_count, n_subs], []) =
        plan.copy_fields((args, 0), [proxy_args::OP_COUNT, proxy_args::N_SUBS], []);
    let connection = plan.load_pointer(sub, proxy_sub_args::CONNECTION);
    // A state tells by itself which way the message goes.
    let (mut sends, mut same_process) = (None, None);
    if hook != StepHook::State {
        let optional = [Some(proxy_connection::SAME_PROCESS)];
        let copied = plan.copy_fields((connection, 0), [proxy_connection::SEND], optional);
        (sends, same_process) = (Some(copied.0[0]), copied.1[0]);
    }
    // 2.23 adds a send to the sum only after it has told it, so the next hook, if only that of the end, shows
    // the size.
    let adds_later = function.param("stepLo").is_some();
    let tells_size = hook == StepHook::State || (hook == StepHook::Stop && adds_later);
    let size = if tells_size { plan.copy_if_there(sub, proxy_sub_args::TRANSFER_SIZE) } else { None };
    let is_sum = size.is_some() && !NameTables::from_layouts(plan.layouts).step_size_is_per_message();
    let summed = is_sum.then(|| [plan.emit(args), plan.emit(sub_index)]);
    let slots = if record && in_send { slot_sizes(&mut plan, sub, connection) } else { None };
    let spans = ProxyStepSpans {
        hook,
        step: plan.emit(step),
        state: state.map(|state| plan.emit(state)),
        op_count,
        n_subs,
        connection: plan.emit(connection),
        sends,
        same_process,
        size,
        summed,
        adds_later,
        slots,
    };
    plan.compiled(ProbeKind::ProxyStep(spans))
}

/// Copies the sizes of the messages in a send's slots: `((sendNetResources*)
/// connection->transportResources)->recvMem->connFifo` (2.20 to 2.22). The proxy resets an entry when the
/// message is done, so the size is still there when the message has been sent.
fn slot_sizes(plan: &mut PlanBuilder<'_>, sub: Slot, connection: Slot) -> Option<SlotSizesSpans> {
    let fields = [
        proxy_connection::TRANSPORT_RESOURCES,
        send_net_resources::RECV_MEM,
        recv_mem::CONN_FIFO,
        conn_fifo::SIZE,
        proxy_sub_args::BASE,
    ];
    let entry = conn_fifo::STRUCT.size(plan.layouts).ok()?;
    if !fields.iter().all(|field| field.exists(plan.layouts)) {
        return None;
    }
    let resources = plan.load_pointer(connection, proxy_connection::TRANSPORT_RESOURCES);
    let memory = plan.load_pointer(resources, send_net_resources::RECV_MEM);
    let (fifo, bytes) = (plan.offset_of(recv_mem::CONN_FIFO), plan.number(entry.saturating_mul(FIFO_STEPS)));
    let (_, size_bytes) = plan.place_of(conn_fifo::SIZE);
    Some(SlotSizesSpans {
        entries: plan.copy(memory, fifo, bytes),
        entry_bytes: plan.number(entry),
        size_at: plan.offset_of(conn_fifo::SIZE),
        size_bytes,
        base: plan.copy_field(sub, proxy_sub_args::BASE),
    })
}
