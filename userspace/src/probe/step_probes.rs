//! What is copied where the network proxy takes a message a step further.
//!
//! NCCL calls its profiler's hooks for every message whether a plugin is loaded or not: src/transport/net.cc calls
//! src/plugin/profiler.cc (2.26 and later) or src/misc/profiler.cc, and the test for a plugin is inside. Three eras: up to 2.22 one
//! function that does nothing, called for each FIFO step; 2.23 a function per moment, called with a range of steps; from
//! 2.24 with the first step of the message. The hooks that fire at the rate of the proxy's poll loop are left alone.

use super::{
    lookup::{Compiled, Lack, field, len, offset, parameter, signed},
    plan_builder::PlanBuilder,
    spans::{ProbeKind, ProxyStepSpans, StepHook},
};
use crate::symbols::{Function, Resolution};

/// The hooks of an era, and what each one shows.
pub(super) type Era = &'static [(&'static str, StepHook)];

/// The latest first.
const ERAS: [Era; 3] = [
    &[
        ("ncclProfilerStartSendProxyStepEvent", StepHook::Start),
        ("ncclProfilerStartRecvProxyStepEvent", StepHook::Start),
        ("ncclProfilerRecordProxyStepEventState", StepHook::State),
        ("ncclProfilerStopProxyStepEvent", StepHook::Stop),
    ],
    &[
        ("ncclProfilerStartSendProxyStepEvents", StepHook::Start),
        ("ncclProfilerStartRecvProxyStepEvents", StepHook::Start),
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

/// One of the hooks.
pub(super) fn proxy_step(resolution: &Resolution, function: &Function, hook: StepHook) -> Compiled {
    let layouts = &resolution.layouts;
    let mut plan = PlanBuilder::new(resolution.machine);
    let record = hook == StepHook::Record;
    let sub_index = plan.int_parameter(parameter(function, if record { "sub" } else { "s" })?);
    let args = plan.parameter(parameter(function, "args")?);
    let step = ["stepId", "stepLo", "step"].into_iter().find(|name| function.param(name).is_some());
    let step = plan.int_parameter(parameter(function, step.unwrap_or("stepId"))?);
    let state = match hook {
        StepHook::State => Some(plan.int_parameter(parameter(function, "eState")?)),
        StepHook::Record => Some(plan.int_parameter(parameter(function, "state")?)),
        StepHook::Start | StepHook::Stop => None,
    };
    let sub_size = layouts.struct_size("ncclProxySubArgs").ok_or(Lack::Struct("ncclProxySubArgs"))?;
    let subs = offset(&field(layouts, "ncclProxyArgs", "subs")?)?;
    let first = plan.offset(args, subs);
    let sub = plan.scale(first, sub_index, signed(sub_size)?);
    let op_count = field(layouts, "ncclProxyArgs", "opCount")?;
    let op_count = plan.load(args, offset(&op_count)?, len(op_count.size)?);
    let connection = offset(&field(layouts, "ncclProxySubArgs", "connection")?)?;
    let connection = plan.load(sub, connection, 8);
    let sends = field(layouts, "ncclProxyConnection", "send")?;
    let sends = plan.load(connection, offset(&sends)?, len(sends.size)?);
    let size = match layouts.field("ncclProxySubArgs", "transSize") {
        Some(size) => Some(plan.load(sub, offset(&size)?, len(size.size)?)),
        None => None,
    };
    let spans = ProxyStepSpans {
        hook,
        step: plan.emit(step),
        state: state.map(|state| plan.emit(state)),
        op_count: plan.emit(op_count),
        connection: plan.emit(connection),
        sends: plan.emit(sends),
        size: size.map(|size| plan.emit(size)),
    };
    Ok((plan.finish()?, ProbeKind::ProxyStep(spans)))
}
