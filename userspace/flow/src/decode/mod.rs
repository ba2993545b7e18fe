//! Bytes from the kernel → events. Pure: no files, no time, no process.

mod api;
mod device_work;
mod event;
mod fields;
mod op_work;
mod plan;
mod plan_fields;
mod proxy_owner;
mod record;
#[cfg(test)]
mod refusals;
mod step;
mod text;

pub use api::{ApiEntryEvent, ApiLineEvent, ApiReturnEvent, ReductionOp};
pub use device_work::{ChannelShare, CollWork, P2pSide, P2pWork, Work, WorkKind};
pub use event::{
    ApiCallEvent, CommunicatorId, Event, Origin, ProxyOp, ProxyOpEvent, ProxyPeerEvent, Ring, TaskInfo, Tree,
};
pub use fields::{MissingField, ProxyOpFields};
pub use op_work::OpWorkFields;
pub use plan::{
    ChannelGraphs, CollTask, ConnectorInfo, OpCounts, OpShape, P2pTask, PlanEvent, PlanPart, PlanPartEvent,
    QueuedOp, WorkBatch,
};
pub use plan_fields::PlanFields;
pub use proxy_owner::{ProxyOwner, ProxyRank};
pub use record::{DecodeError, RecordView};
pub use step::{BytesSum, ProxyStepEvent, SendSizeEvent, StepMoment};
pub use text::Transport;

use crate::wire::{ProbeKind, Span};
use nccl_library::nccl::NameTables;

/// What a probe's records of one library mean.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Decoder {
    pub op_fields: ProxyOpFields,
    pub names: NameTables,
    /// For libraries with plans that can be walked.
    pub plan_fields: Option<PlanFields>,
    /// For libraries with ops that do not state their channel's share.
    #[serde(default)]
    pub op_work: Option<OpWorkFields>,
}

impl Decoder {
    /// Decodes one record of a probe of this kind.
    pub fn decode(&self, kind: &ProbeKind, record: &RecordView<'_>) -> Result<Event, DecodeError> {
        match kind {
            ProbeKind::ProxyOp(spans) => {
                event::proxy_op(self, spans, record).map(Box::new).map(Event::ProxyOp)
            }
            ProbeKind::ProxyPeer(spans) => event::proxy_peer(spans, record).map(Event::ProxyPeer),
            ProbeKind::ApiCall(spans) => event::api_call(spans, &self.names, record).map(Event::ApiCall),
            ProbeKind::ApiLine(spans) => {
                api::api_line(spans, &self.names, record).map(Box::new).map(Event::ApiLine)
            }
            ProbeKind::ApiEntry(spans) => api::api_entry(spans, record).map(Event::ApiEntry),
            ProbeKind::ApiReturn(spans) => api::api_return(spans, &self.names, record).map(Event::ApiReturn),
            ProbeKind::Plan(spans) => plan::plan(self, spans, record).map(Box::new).map(Event::Plan),
            ProbeKind::PlanNode(spans) => plan::node(self, spans, record).map(Event::PlanPart),
            ProbeKind::Channel(spans) => plan::channel(spans, record).map(Event::PlanPart),
            ProbeKind::Connectors(spans) => plan::connectors(spans, record).map(Event::PlanPart),
            ProbeKind::Head => Err(DecodeError::UnknownProbe(record.header.probe)),
            ProbeKind::ProxyStep(spans) => step::proxy_step(spans, &self.names, record).map(Event::ProxyStep),
            ProbeKind::SendSize(spans) => step::send_size(spans, record).map(Event::SendSize),
        }
    }
}

/// Reads an unsigned little-endian integer of 1, 2, 4 or 8 bytes.
pub fn unsigned(bytes: &[u8]) -> Option<u64> {
    if bytes.len() > 8 {
        return None;
    }
    let mut word = [0; 8];
    word.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(word))
}

/// Reads a signed little-endian integer of 1, 2, 4 or 8 bytes.
pub fn signed(bytes: &[u8]) -> Option<i64> {
    let bits = u32::try_from(bytes.len()).ok()?.checked_mul(8)?;
    let unused = 64u32.checked_sub(bits)?;
    let value = unsigned(bytes)?;
    if unused == 64 { None } else { Some((value << unused).cast_signed() >> unused) }
}

pub fn bytes_of(record: &[u8], span: Span) -> Option<&[u8]> {
    let start = usize::from(span.at);
    record.get(start..start.checked_add(usize::from(span.len))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_size_keep_their_sign() {
        assert_eq!(signed(&[0xff]), Some(-1));
        assert_eq!(signed(&[0xff, 0xff, 0xff, 0xff]), Some(-1));
        assert_eq!(signed(&[0x7f, 0, 0, 0, 0, 0, 0, 0x80]), Some(i64::MIN + 0x7f));
        assert_eq!(unsigned(&[0xff, 0xff]), Some(0xffff));
        assert_eq!(signed(&[]), None);
        assert_eq!(unsigned(&[0; 9]), None);
    }
}
