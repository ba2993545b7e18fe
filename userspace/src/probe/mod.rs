//! Probes: where to attach, and what to copy there.

mod nccl_probes;
mod plan_builder;

pub use nccl_probes::{
    ApiCallSpans, CommunicatorSpans, MissingProbe, Probe, ProbeKind, ProbeSet, ProxyOpSpans, ProxyPeerSpans,
    TaskSpans, compile,
};
pub use plan_builder::{FinishedPlan, PlanBuilder, PlanError, Slot, Span};
