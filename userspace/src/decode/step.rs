//! Records of the proxy's steps.

use super::{DecodeError, Direction, Origin, RecordView, event::origin};
use crate::{
    nccl::{NameTables, StepState},
    probe::{ProxyStepSpans, StepHook},
};

/// How far a message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepMoment {
    Start,
    Posted,
    Ready,
    Sent,
    Arrived,
    Handed,
    Stop,
    /// A state that says nothing about the way of the data.
    Other,
}

/// A message of the network proxy takes a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyStepEvent {
    pub origin: Origin,
    pub moment: StepMoment,
    /// Address of the `ncclProxyConnection`.
    pub connection: u64,
    /// Final opCount of the op.
    pub op_count: u64,
    pub direction: Direction,
    /// FIFO step at which the message begins, counted from the op's first.
    pub step: u64,
    /// Bytes of the message; where this version says so at this moment.
    pub bytes: Option<u64>,
}

/// Decodes a record of one of the step hooks.
pub(super) fn proxy_step(
    spans: &ProxyStepSpans,
    names: &NameTables,
    record: &RecordView<'_>,
) -> Result<ProxyStepEvent, DecodeError> {
    let moment = match (spans.hook, &spans.state) {
        (StepHook::Start, _) => StepMoment::Start,
        (StepHook::Stop, _) => StepMoment::Stop,
        (StepHook::State, Some(state)) => {
            let state = i64::from(record.int(state)?);
            match names.step_state(state) {
                Some(StepState::SendPeerWait) => StepMoment::Ready,
                Some(StepState::SendWait) => StepMoment::Sent,
                Some(StepState::RecvWait) => StepMoment::Posted,
                Some(StepState::RecvFlushWait) => StepMoment::Arrived,
                Some(StepState::RecvGpuWait) => StepMoment::Handed,
                Some(StepState::SendGpuWait) => StepMoment::Other,
                None => return Err(DecodeError::UnknownValue { what: "step state", value: state }),
            }
        }
        (StepHook::State, None) => return Err(DecodeError::Unreadable("the step's state")),
    };
    let step = record.int(&spans.step)?;
    Ok(ProxyStepEvent {
        origin: origin(record),
        moment,
        connection: record.unsigned(&spans.connection)?,
        op_count: record.unsigned(&spans.op_count)?,
        direction: if record.int(&spans.sends)? == 0 { Direction::Recv } else { Direction::Send },
        step: u64::try_from(step)
            .map_err(|_| DecodeError::UnknownValue { what: "step", value: step.into() })?,
        bytes: names.step_size_is_per_message().then(|| record.unsigned(&spans.size)).transpose()?,
    })
}
