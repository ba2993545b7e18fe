//! Probes on functions through which the network proxy tells that a message is a step further.
//!
//! NCCL calls its profiler's hooks for every message whether a plugin is loaded or not: src/transport/net.cc
//! calls src/plugin/profiler.cc (2.26 and later) or src/misc/profiler.cc, and the test for a plugin is
//! inside. There are three eras: up to 2.22 one function that does nothing, called for each FIFO step; 2.23 a
//! function per moment, called with a range of steps; from 2.24 with the first step of the message. The
//! probes' places are found by [`super::step_places`].

use super::{
    error::PlanError,
    lookup::{Compiled, extent, len, offset, offset_of, parameter, place, place_of, signed},
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
    let layouts = &resolution.layouts;
    let mut plan = PlanBuilder::new(resolution.machine);
    let record = hook == StepHook::Record;
    let sub_index = plan.int_parameter(parameter(function, if record { "sub" } else { "s" })?);
    let args = plan.parameter(parameter(function, "args")?);
    let step = ["stepId", "stepLo", "step"].into_iter().find(|name| function.param(name).is_some());
    let step = plan.int_parameter(parameter(function, step.unwrap_or("stepId"))?);
    let state = match state_parameter(hook) {
        Some(name) => Some(plan.int_parameter(parameter(function, name)?)),
        None => None,
    };
    let sub_size = signed(proxy_sub_args::STRUCT.size(layouts)?)?;
    let subs = offset_of(layouts, proxy_args::SUBS)?;
    let first = if subs == 0 { args } else { plan.offset(args, subs) };
    let sub = plan.scale(first, sub_index, sub_size);
    // A step of the plan costs the target some 25 ns: fields that lie near each other are copied at once.
    let of_args = [place_of(layouts, proxy_args::OP_COUNT)?, place_of(layouts, proxy_args::N_SUBS)?];
    let of_args = if extent(&of_args) <= MAX_NEAR {
        plan.copy_together(args, &of_args)
    } else {
        of_args.iter().map(|(offset, len)| plan.copy(args, *offset, *len)).collect()
    };
    let &[op_count, n_subs] = of_args.as_slice() else { return Err(proxy_args::OP_COUNT.missing().into()) };
    let connection = plan.load(sub, offset_of(layouts, proxy_sub_args::CONNECTION)?, 8);
    // A state tells by itself which way the message goes.
    let mut of_connection = Vec::new();
    if hook != StepHook::State {
        let sends = place_of(layouts, proxy_connection::SEND)?;
        let same_process = proxy_connection::SAME_PROCESS.find(layouts);
        let same_process = same_process.map(|field| place(&field)).transpose()?;
        let places: Vec<_> = [Some(sends), same_process].into_iter().flatten().collect();
        of_connection = plan.copy_together(connection, &places);
    }
    let (sends, same_process) = (of_connection.first().copied(), of_connection.get(1).copied());
    // 2.23 adds a send to the sum only after it has told it, so the next hook, if only that of the end, shows
    // the size.
    let adds_later = function.param("stepLo").is_some();
    let tells_size = hook == StepHook::State || (hook == StepHook::Stop && adds_later);
    let size = match proxy_sub_args::TRANSFER_SIZE.find(layouts) {
        Some(size) if tells_size => Some(plan.copy(sub, offset(&size)?, len(size.size)?)),
        _ => None,
    };
    let is_sum = size.is_some() && !NameTables::from_layouts(layouts).step_size_is_per_message();
    let summed = is_sum.then(|| [plan.emit(args), plan.emit(sub_index)]);
    let slots = if record && in_send { slot_sizes(&mut plan, resolution, sub, connection)? } else { None };
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
    Ok((plan.finish()?, ProbeKind::ProxyStep(spans), None))
}

/// Copies the sizes of the messages in a send's slots: `((sendNetResources*)
/// connection->transportResources)->recvMem->connFifo` (2.20 to 2.22). The proxy resets an entry when the
/// message is done, so the size is still there when the message has been sent.
fn slot_sizes(
    plan: &mut PlanBuilder,
    resolution: &Resolution,
    sub: Slot,
    connection: Slot,
) -> Result<Option<SlotSizesSpans>, PlanError> {
    let layouts = &resolution.layouts;
    let (Some(resources), Some(memory), Some(fifo), Some(size), Some(base)) = (
        proxy_connection::TRANSPORT_RESOURCES.find(layouts),
        send_net_resources::RECV_MEM.find(layouts),
        recv_mem::CONN_FIFO.find(layouts),
        conn_fifo::SIZE.find(layouts),
        proxy_sub_args::BASE.find(layouts),
    ) else {
        return Ok(None);
    };
    let Ok(entry) = conn_fifo::STRUCT.size(layouts) else { return Ok(None) };
    let resources = plan.load(connection, offset(&resources)?, 8);
    let memory = plan.load(resources, offset(&memory)?, 8);
    Ok(Some(SlotSizesSpans {
        entries: plan.copy(memory, offset(&fifo)?, len(entry.saturating_mul(FIFO_STEPS))?),
        entry_bytes: len(entry)?,
        size_at: len(size.offset)?,
        size_bytes: len(size.size)?,
        base: plan.copy(sub, offset(&base)?, len(base.size)?),
    }))
}

/// Most bytes over which fields of one struct are copied at once, with what lies between them.
const MAX_NEAR: i64 = 64;
