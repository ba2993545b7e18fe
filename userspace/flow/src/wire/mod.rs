//! What the kernel side and the user side agree on, of one probe: where its record has what.

mod span;
mod spans;

pub use span::Span;
pub use spans::{
    ApiArgumentsSpans, ApiCallSpans, ApiEntrySpans, ApiLineSpans, ApiReturnSpans, ChannelSpans,
    CommunicatorSpans, ConnectorSpans, ConnectorsSpans, OpWorkSpans, PlanList, PlanNodeSpans, PlanSpans,
    ProbeKind, ProxyOpSpans, ProxyOwnerSpans, ProxyPeerSpans, ProxyStepSpans, SendSizeSpans, SlotSizesSpans,
    StepHook, TaskSpans,
};
