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
    /// FIFO step at which the message begins, counted from the op's first; or, where `is_per_fifo_step`, one of its steps.
    pub step: u64,
    /// Ops that the proxy takes together with this one: they share the slots.
    pub n_subs: u64,
    /// The moment is told once for each of the message's FIFO steps (up to 2.22), and not once.
    pub is_per_fifo_step: bool,
    /// Bytes of the message; where this version says so at this moment.
    pub bytes: Option<u64>,
}

/// Numbers of `ncclProxyProfileState` from here on are states of the proxy thread: asleep, idle, taking ops.
const THREAD_STATES: i32 = 8;

/// Decodes a record of one of the step hooks.
pub(super) fn proxy_step(
    spans: &ProxyStepSpans,
    names: &NameTables,
    record: &RecordView<'_>,
) -> Result<ProxyStepEvent, DecodeError> {
    if let (StepHook::Record, Some(state)) = (spans.hook, &spans.state)
        && record.int(state)? >= THREAD_STATES
    {
        // The proxy thread's own state: of no op, and with no connection to read.
        return Ok(ProxyStepEvent {
            origin: origin(record),
            moment: StepMoment::Other,
            connection: 0,
            op_count: 0,
            direction: Direction::Recv,
            step: 0,
            n_subs: 1,
            is_per_fifo_step: true,
            bytes: None,
        });
    }
    let sends = match &spans.sends {
        Some(sends) => Some(record.int(sends)? != 0),
        None => None,
    };
    let (moment, sends) = match (spans.hook, &spans.state, sends) {
        (StepHook::Stop, _, Some(sends)) => (StepMoment::Stop, sends),
        (StepHook::State, Some(state), _) => {
            let state = i64::from(record.int(state)?);
            match names.step_state(state) {
                Some(StepState::SendGpuWait) => (StepMoment::Start, true),
                Some(StepState::SendPeerWait) => (StepMoment::Ready, true),
                Some(StepState::SendWait) => (StepMoment::Sent, true),
                Some(StepState::RecvWait) => (StepMoment::Posted, false),
                Some(StepState::RecvFlushWait) => (StepMoment::Arrived, false),
                Some(StepState::RecvGpuWait) => (StepMoment::Handed, false),
                None => return Err(DecodeError::UnknownValue { what: "step state", value: state }),
            }
        }
        (StepHook::Record, Some(state), Some(sends)) => (recorded(record.int(state)?, sends), sends),
        _ => return Err(DecodeError::Unreadable("the step's state, or its direction")),
    };
    let step = record.int(&spans.step)?;
    Ok(ProxyStepEvent {
        origin: origin(record),
        moment,
        connection: record.unsigned(&spans.connection)?,
        op_count: record.unsigned(&spans.op_count)?,
        n_subs: record.unsigned(&spans.n_subs)?,
        direction: if sends { Direction::Send } else { Direction::Recv },
        is_per_fifo_step: spans.hook == StepHook::Record,
        step: u64::try_from(step)
            .map_err(|_| DecodeError::UnknownValue { what: "step", value: step.into() })?,
        bytes: match &spans.size {
            Some(size) if names.step_size_is_per_message() => Some(record.unsigned(size)?),
            _ => None,
        },
    })
}

/// `ncclProxyProfileState` (2.16 to 2.22, src/include/profiler.h; plain numbers, whose meaning depends on the direction).
fn recorded(state: i32, sends: bool) -> StepMoment {
    match (state, sends) {
        // The slot was offered to the GPU.
        (1, true) => StepMoment::Start,
        (2, true) => StepMoment::Sent,
        (1, false) => StepMoment::Posted,
        (2, false) => StepMoment::Arrived,
        (3, false) => StepMoment::Handed,
        (4, _) => StepMoment::Stop,
        _ => StepMoment::Other,
    }
}
