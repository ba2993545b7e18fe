//! What is copied where the network proxy takes a message a step further.
//!
//! NCCL calls its profiler's hooks for every message whether a plugin is loaded or not: src/transport/net.cc calls
//! src/plugin/profiler.cc (2.26 and later) or src/misc/profiler.cc, and the test for a plugin is inside. Three eras: up to 2.22 one
//! function that does nothing, called for each FIFO step; 2.23 a function per moment, called with a range of steps; from
//! 2.24 with the first step of the message. Where the probes go is [`super::step_places`]'s.

use super::{
    lookup::{Compiled, Lack, extent, field, len, offset, parameter, place, signed},
    plan_builder::{PlanBuilder, Slot},
};
use flow::wire::{ProbeKind, ProxyStepSpans, SlotSizesSpans, StepHook};
use nccl_library::{
    nccl::{FIFO_STEPS, NameTables},
    symbols::{Function, Resolution},
};

/// The hooks of an era, and what each one shows.
pub(super) type Era = &'static [(&'static str, StepHook)];

/// The latest first. The hooks at which a message begins (`ncclProfilerStart…`) are left alone: that of a send is followed at once by
/// the state `SendGPUWait`, and that of a receive repeats at the rate of the proxy's poll loop.
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

/// The era of this library: the first whose functions it has, or the latest, to say what is missing.
pub(super) fn era(resolution: &Resolution) -> Era {
    let has_any = |era: &Era| era.iter().any(|(name, _)| !resolution.functions(name).is_empty());
    ERAS.into_iter().find(has_any).unwrap_or(ERAS[0])
}

/// The parameter with the state that a message enters.
pub(super) fn state_parameter(hook: StepHook) -> Option<&'static str> {
    match hook {
        StepHook::State => Some("eState"),
        StepHook::Record => Some("state"),
        StepHook::Stop => None,
    }
}

/// One of the hooks.
/// `in_send`: the probe is where only sends come by.
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
    let sub_size = layouts.struct_size("ncclProxySubArgs").ok_or(Lack::Struct("ncclProxySubArgs"))?;
    let subs = offset(&field(layouts, "ncclProxyArgs", "subs")?)?;
    let first = if subs == 0 { args } else { plan.offset(args, subs) };
    let sub = plan.scale(first, sub_index, signed(sub_size)?);
    // A step of the plan costs the target some 25 ns: what lies near is copied at once.
    let of_args = [
        place(&field(layouts, "ncclProxyArgs", "opCount")?)?,
        place(&field(layouts, "ncclProxyArgs", "nsubs")?)?,
    ];
    let of_args = if extent(&of_args) <= MAX_NEAR {
        plan.copy_together(args, &of_args)
    } else {
        of_args.iter().map(|(offset, len)| plan.copy(args, *offset, *len)).collect()
    };
    let &[op_count, n_subs] = of_args.as_slice() else {
        return Err(Lack::Field("ncclProxyArgs", "opCount"));
    };
    let connection = offset(&field(layouts, "ncclProxySubArgs", "connection")?)?;
    let connection = plan.load(sub, connection, 8);
    // A state tells by itself which way the message goes.
    let mut of_connection = Vec::new();
    if hook != StepHook::State {
        let sends = place(&field(layouts, "ncclProxyConnection", "send")?)?;
        let same_process = layouts.field("ncclProxyConnection", "sameProcess");
        let same_process = same_process.map(|field| place(&field)).transpose()?;
        let places: Vec<_> = [Some(sends), same_process].into_iter().flatten().collect();
        of_connection = plan.copy_together(connection, &places);
    }
    let (sends, same_process) = (of_connection.first().copied(), of_connection.get(1).copied());
    // 2.23 adds a send to the sum only after it has told it: what is told next, if only the end, shows it.
    let adds_later = function.param("stepLo").is_some();
    let tells_size = hook == StepHook::State || (hook == StepHook::Stop && adds_later);
    let size = match layouts.field("ncclProxySubArgs", "transSize") {
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
    Ok((plan.finish()?, ProbeKind::ProxyStep(spans)))
}

/// The sizes of what is in a send's slots: `((sendNetResources*) connection->transportResources)->recvMem->connFifo` (2.20 to 2.22). The
/// proxy resets an entry when the message is done, so it is there when the message has been sent.
fn slot_sizes(
    plan: &mut PlanBuilder,
    resolution: &Resolution,
    sub: Slot,
    connection: Slot,
) -> Result<Option<SlotSizesSpans>, Lack> {
    let layouts = &resolution.layouts;
    let (Some(resources), Some(memory), Some(fifo), Some(size), Some(base)) = (
        layouts.field("ncclProxyConnection", "transportResources"),
        layouts.field("sendNetResources", "recvMem"),
        layouts.field("ncclRecvMem", "connFifo"),
        layouts.field("ncclConnFifo", "size"),
        layouts.field("ncclProxySubArgs", "base"),
    ) else {
        return Ok(None);
    };
    let Some(entry) = layouts.struct_size("ncclConnFifo") else { return Ok(None) };
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

/// Fields of one struct are copied with what lies between them if that is not more, in bytes.
const MAX_NEAR: i64 = 64;
