//! Decodes bytes from the kernel side to events. Pure: no files, no time, no process.

#[macro_use]
mod places;

mod api;
mod channel;
mod communicator;
mod device_work;
mod graph;
mod launch;
mod op_work;
mod plan;
mod plan_fields;
mod proxy_op;
mod record;
mod stack;
mod step;

pub use api::{ApiCallEvent, ApiEntryEvent, ApiLineEvent, ApiReturnEvent, ReductionOp};
pub use channel::{ChannelGraphs, Connector, ProxyOwner, ProxyPeerEvent, ProxyRank, Ring, Tree};
pub use communicator::{CommunicatorId, CommunicatorPlaces};
pub use device_work::{BroadcastWork, ChannelShare, CollWork, P2pSide, P2pWork, Work, WorkKind};
pub use graph::{Answer, GraphEvent};
pub use launch::{Launch, LaunchKernel, LaunchedBuffer, LaunchedCall, OneSidedCall};
pub use op_work::OpWorkFields;
pub use plan::{
    CollTask, OpCounts, OpShape, P2pTask, PlanEvent, PlanPart, PlanPartEvent, QueuedOp, WorkBatch,
};
pub use plan_fields::{LaunchFields, PlanFields};
pub use proxy_op::{LaunchedOp, ProxyOp, ProxyOpEvent, ProxyOpFields, TaskInfo};
pub use record::{DecodeError, RecordView, Result};
pub use stack::StackEvent;
pub use step::{BytesSum, ProxyStepEvent, SendSizeEvent, StepMoment};

use serde::{Deserialize, Serialize};

use crate::wire::ProbeKind;
use nccl_library::nccl::NameTables;

/// Origin of a record: when and where it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub ts_ns: u64,
    /// Process ID in the initial PID namespace.
    pub tgid: u32,
    /// Thread ID in the initial PID namespace.
    pub tid: u32,
    /// Records of the process that were lost before this one, in the kernel and since.
    pub lost: u64,
    /// Identity of the call stack ([`StackEvent::id`]), if the stack was recorded.
    pub stack: Option<u64>,
}

/// A decoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    ProxyOp(Box<ProxyOpEvent>),
    ProxyPeer(ProxyPeerEvent),
    ApiCall(ApiCallEvent),
    /// Call of the API that names no communicator. NCCL refuses it, and no op follows.
    CallWithoutCommunicator(Origin),
    ApiLine(Box<ApiLineEvent>),
    ApiEntry(ApiEntryEvent),
    ApiReturn(ApiReturnEvent),
    ProxyStep(ProxyStepEvent),
    SendSize(SendSizeEvent),
    Stack(StackEvent),
    PlanPart(PlanPartEvent),
    Plan(Box<PlanEvent>),
    Graph(Box<GraphEvent>),
}

/// Decoder of the records of one library's probes.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// Kernels on symmetric memory, in the order of their addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub symmetric_kernels: Vec<LaunchKernel>,
    /// Places of a communicator's identity in memory, for the process that records: a recording holds the
    /// values that were read there.
    #[serde(skip)]
    pub communicator: Option<CommunicatorPlaces>,
}

impl Decoder {
    fn op_fields(&self) -> Result<&ProxyOpFields> {
        self.op_fields.as_ref().ok_or(DecodeError::Unreadable("an op, whose layout is not known"))
    }

    /// Decodes one record of a probe of this kind.
    pub fn decode(&self, kind: &ProbeKind, record: &RecordView<'_>) -> Result<Event> {
        let names = &self.names;
        Ok(match kind {
            ProbeKind::ProxyOp(spans) => Event::ProxyOp(Box::new(proxy_op::proxy_op(self, spans, record)?)),
            ProbeKind::ProxyPeer(spans) => Event::ProxyPeer(channel::proxy_peer(spans, record)?),
            ProbeKind::ApiCall(spans) => match api::api_call(spans, names, record)? {
                Some(call) => Event::ApiCall(call),
                None => Event::CallWithoutCommunicator(record.origin()),
            },
            ProbeKind::ApiLine(spans) => Event::ApiLine(Box::new(api::api_line(spans, names, record)?)),
            ProbeKind::ApiArguments(spans) => {
                Event::ApiLine(Box::new(api::api_arguments(spans, names, record)?))
            }
            ProbeKind::ApiEntry(spans) => Event::ApiEntry(api::api_entry(spans, record)?),
            ProbeKind::ApiReturn(spans) => Event::ApiReturn(api::api_return(spans, names, record)?),
            ProbeKind::Plan(spans) => Event::Plan(Box::new(plan::plan(self, spans, record)?)),
            ProbeKind::PlanNode(spans) => Event::PlanPart(plan::node(self, spans, record)?),
            ProbeKind::Channel(spans) => Event::PlanPart(channel::channel(spans, record)?),
            ProbeKind::Connectors(spans) => Event::PlanPart(channel::connectors(spans, record)?),
            ProbeKind::Head => return Err(DecodeError::UnknownProbe(record.header.probe)),
            ProbeKind::ProxyStep(spans) => Event::ProxyStep(step::proxy_step(spans, names, record)?),
            ProbeKind::Stack => Event::Stack(StackEvent::of(record)?),
            ProbeKind::Graph(spans) => Event::Graph(Box::new(graph::graph(spans, record)?)),
            ProbeKind::SendSize(spans) => Event::SendSize(step::send_size(spans, record)?),
        })
    }
}

#[cfg(test)]
mod tests;
