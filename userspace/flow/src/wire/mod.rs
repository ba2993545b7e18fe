//! Layouts of probes' records, on which the kernel side and the user side agree.

mod span;
mod spans;

pub use span::Span;
pub use spans::{
    ApiArgumentsSpans, ApiCallSpans, ApiEntrySpans, ApiLineSpans, ApiReturnSpans, ChannelSpans,
    CommunicatorSpans, ConnectorSpans, ConnectorsSpans, OpWorkSpans, PlanList, PlanNodeSpans, PlanSpans,
    ProbeKind, ProxyOpSpans, ProxyOwnerSpans, ProxyPeerSpans, ProxyStepSpans, SendSizeSpans, SlotSizesSpans,
    StepHook, TaskSpans,
};
