//! What is copied where the network proxy takes a message a step further.
//!
//! NCCL calls its profiler's hooks for every message whether a plugin is loaded or not; the test for one is inside (2.24 and
//! later: src/transport/net.cc calls src/plugin/profiler.cc, before 2.26 src/misc/profiler.cc). The two hooks that fire at
//! the rate of the proxy's poll loop are left alone.

use super::{
    lookup::{Compiled, Lack, field, len, offset, parameter, signed},
    plan_builder::PlanBuilder,
    spans::{ProbeKind, ProxyStepSpans, StepHook},
};
use crate::symbols::{Function, Resolution};

/// The hooks, and what each one shows.
pub(super) const HOOKS: [(&str, StepHook); 4] = [
    ("ncclProfilerStartSendProxyStepEvent", StepHook::Start),
    ("ncclProfilerStartRecvProxyStepEvent", StepHook::Start),
    ("ncclProfilerRecordProxyStepEventState", StepHook::State),
    ("ncclProfilerStopProxyStepEvent", StepHook::Stop),
];

/// One of the hooks: `(int sub, ncclProxyArgs* args, int stepId[, state])`.
pub(super) fn proxy_step(resolution: &Resolution, function: &Function, hook: StepHook) -> Compiled {
    let layouts = &resolution.layouts;
    let mut plan = PlanBuilder::new(resolution.machine);
    let sub_index = plan.int_parameter(parameter(function, "s")?);
    let args = plan.parameter(parameter(function, "args")?);
    let step = plan.int_parameter(parameter(function, "stepId")?);
    let state = match hook {
        StepHook::State => Some(plan.int_parameter(parameter(function, "eState")?)),
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
    let size = field(layouts, "ncclProxySubArgs", "transSize")?;
    let size = plan.load(sub, offset(&size)?, len(size.size)?);
    let spans = ProxyStepSpans {
        hook,
        step: plan.emit(step),
        state: state.map(|state| plan.emit(state)),
        op_count: plan.emit(op_count),
        connection: plan.emit(connection),
        sends: plan.emit(sends),
        size: plan.emit(size),
    };
    Ok((plan.finish()?, ProbeKind::ProxyStep(spans)))
}
