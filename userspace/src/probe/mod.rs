//! Probes: where to attach, and what to copy there.

mod api_probes;
mod lookup;
mod op_probes;
mod plan_builder;
mod set;
mod spans;
mod step_probes;

pub use plan_builder::{FinishedPlan, PlanBuilder, PlanError, Slot, Span};
pub use set::{Level, MissingProbe, Probe, ProbePlace, ProbeSet, add_api_returns, compile};
pub use spans::{
    ApiCallSpans, ApiEntrySpans, ApiLineSpans, ApiReturnSpans, CommunicatorSpans, ProbeKind, ProxyOpSpans,
    ProxyPeerSpans, ProxyStepSpans, StepHook, TaskSpans,
};
