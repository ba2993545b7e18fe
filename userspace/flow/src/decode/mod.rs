//! Decodes bytes from the kernel side to events. Pure: no files, no time, no process.

#[macro_use]
mod places;

mod api;
mod communicator;
mod communicator_places;
mod connector;
mod device_work;
mod event;
mod graphs;
mod op_work;
mod plan;
mod plan_fields;
mod proxy_op;
mod record;
mod stack;
mod step;
mod task;
mod text;

pub use api::{ApiCallEvent, ApiEntryEvent, ApiLineEvent, ApiReturnEvent, ReductionOp};
pub use communicator::CommunicatorId;
pub use communicator_places::CommunicatorPlaces;
pub use connector::{Connector, ProxyOwner, ProxyPeerEvent, ProxyRank};
pub use device_work::{ChannelShare, CollWork, P2pSide, P2pWork, Work, WorkKind};
pub use event::{Event, Origin};
pub use graphs::{ChannelGraphs, Ring, Tree};
pub use op_work::OpWorkFields;
pub use plan::{
    CollTask, OpCounts, OpShape, P2pTask, PlanEvent, PlanPart, PlanPartEvent, QueuedOp, WorkBatch,
};
pub use plan_fields::PlanFields;
pub use proxy_op::{ProxyOp, ProxyOpEvent, ProxyOpFields};
pub use record::{DecodeError, RecordView};
pub use stack::StackEvent;
pub use step::{BytesSum, ProxyStepEvent, SendSizeEvent, StepMoment};
pub use task::TaskInfo;

use crate::wire::ProbeKind;
use nccl_library::nccl::NameTables;

/// Decoder of the records of one library's probes.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Decoder {
    /// Fields of `ncclProxyOp`. `None`: the library's layouts are not known, and only calls of its API are
    /// recorded.
    pub op_fields: Option<ProxyOpFields>,
    pub names: NameTables,
    /// Fields of plans, for libraries whose plans can be walked.
    pub plan_fields: Option<PlanFields>,
    /// Fields of device work, for libraries whose ops do not state their channel's share.
    #[serde(default)]
    pub op_work: Option<OpWorkFields>,
    /// Places of a communicator's identity in memory, for the process that records: a recording holds the
    /// values that were read there.
    #[serde(skip)]
    pub communicator: Option<CommunicatorPlaces>,
}

impl Decoder {
    fn op_fields(&self) -> Result<&ProxyOpFields, DecodeError> {
        self.op_fields.as_ref().ok_or(DecodeError::Unreadable("an op, whose layout is not known"))
    }

    /// Decodes one record of a probe of this kind.
    pub fn decode(&self, kind: &ProbeKind, record: &RecordView<'_>) -> Result<Event, DecodeError> {
        match kind {
            ProbeKind::ProxyOp(spans) => {
                proxy_op::proxy_op(self, spans, record).map(Box::new).map(Event::ProxyOp)
            }
            ProbeKind::ProxyPeer(spans) => connector::proxy_peer(spans, record).map(Event::ProxyPeer),
            ProbeKind::ApiCall(spans) => {
                let call = api::api_call(spans, &self.names, record)?;
                Ok(call.map_or_else(|| Event::CallWithoutCommunicator(record.origin()), Event::ApiCall))
            }
            ProbeKind::ApiLine(spans) => {
                api::api_line(spans, &self.names, record).map(Box::new).map(Event::ApiLine)
            }
            ProbeKind::ApiArguments(spans) => {
                api::api_arguments(spans, &self.names, record).map(Box::new).map(Event::ApiLine)
            }
            ProbeKind::ApiEntry(spans) => api::api_entry(spans, record).map(Event::ApiEntry),
            ProbeKind::ApiReturn(spans) => api::api_return(spans, &self.names, record).map(Event::ApiReturn),
            ProbeKind::Plan(spans) => plan::plan(self, spans, record).map(Box::new).map(Event::Plan),
            ProbeKind::PlanNode(spans) => plan::node(self, spans, record).map(Event::PlanPart),
            ProbeKind::Channel(spans) => graphs::channel(spans, record).map(Event::PlanPart),
            ProbeKind::Connectors(spans) => connector::connectors(spans, record).map(Event::PlanPart),
            ProbeKind::Head => Err(DecodeError::UnknownProbe(record.header.probe)),
            ProbeKind::ProxyStep(spans) => step::proxy_step(spans, &self.names, record).map(Event::ProxyStep),
            ProbeKind::Stack => StackEvent::of(record).map(Event::Stack),
            ProbeKind::SendSize(spans) => step::send_size(spans, record).map(Event::SendSize),
        }
    }
}

#[cfg(test)]
mod tests;
