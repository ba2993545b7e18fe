//! Records of the proxy's steps.

use super::{
    DecodeError, Origin, RecordView, Result,
    record::{if_readable, in_range},
};
use crate::wire::{ProxyStepSpans, SendSizeSpans, SlotSizesSpans, StepHook};
use nccl_library::nccl::{Direction, NameTables, StepState};

/// Moment of a message on its way: a step that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepMoment {
    /// Send: the slot is offered to the GPU.
    Start,
    /// Receive: the network was asked for the message.
    Posted,
    /// Send: the GPU has filled the slot, and the network is asked to send for the first time (2.27 and
    /// later).
    Ready,
    /// Send: the network has taken the message.
    Sent,
    /// Receive: the data is there.
    Arrived,
    /// Receive: the data is handed to the GPU.
    Handed,
    /// Send: the network is done with the message. Receive: the GPU has taken it out of the slot.
    Stop,
    /// State that says nothing about the way of the data.
    Other,
}

/// A step that a message of the network proxy takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyStepEvent {
    pub origin: Origin,
    pub moment: StepMoment,
    /// Address of the `ncclProxyConnection`.
    pub connection: u64,
    /// Final opCount of the op.
    pub op_count: u64,
    pub direction: Direction,
    /// FIFO step at which the message begins, counted from the op's first; or, where `is_per_fifo_step`, one
    /// of the message's FIFO steps.
    pub step: u64,
    /// Ops that the proxy takes together, this one among them: they share the slots.
    pub n_subs: u64,
    /// Another process posted the op (PXN); `None` where this hook does not tell it.
    pub is_foreign: Option<bool>,
    /// NCCL reports the moment once for each of the message's FIFO steps (up to 2.22), not once for the
    /// message.
    pub is_per_fifo_step: bool,
    /// Bytes of the message, where this version tells them at this moment.
    pub bytes: Option<u64>,
    /// FIFO step of an earlier message of the op, and its bytes, where they become known only now.
    pub bytes_before: Option<(u64, u64)>,
    /// Sum over all messages so far, where the version has that instead.
    pub bytes_sum: Option<BytesSum>,
}

/// Running sum of the bytes of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesSum {
    /// Address of the memory that holds the sum.
    pub place: u64,
    pub bytes: u64,
    /// The sum does not contain the message of this record yet.
    pub lacks_this: bool,
}

/// Size of a message that the network has taken: of the next one that the same thread reports as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendSizeEvent {
    pub origin: Origin,
    /// Bytes of the message; `None`: the value in the slot is no size, or could not be read.
    pub bytes: Option<u64>,
}

/// First number of `ncclProxyProfileState` that is a state of the proxy thread: asleep, idle, taking ops.
const THREAD_STATES: i32 = 8;

/// Decodes a record of one of the step hooks.
pub(super) fn proxy_step(
    spans: &ProxyStepSpans,
    names: &NameTables,
    record: &RecordView<'_>,
) -> Result<ProxyStepEvent> {
    if let (StepHook::Record, Some(state)) = (spans.hook, &spans.state)
        && record.int(state)? >= THREAD_STATES
    {
        // The proxy thread's own state, which belongs to no op and has no connection to read.
        return Ok(ProxyStepEvent {
            origin: record.origin(),
            moment: StepMoment::Other,
            connection: 0,
            op_count: 0,
            direction: Direction::Recv,
            step: 0,
            n_subs: 1,
            is_foreign: None,
            is_per_fifo_step: true,
            bytes: None,
            bytes_before: None,
            bytes_sum: None,
        });
    }
    let sends = record.optional_int(spans.sends.as_ref())?.map(|sends| sends != 0);
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
        origin: record.origin(),
        moment,
        connection: record.unsigned(&spans.connection)?,
        op_count: record.unsigned(&spans.op_count)?,
        n_subs: record.unsigned(&spans.n_subs)?,
        direction: if sends { Direction::Send } else { Direction::Recv },
        is_foreign: record.optional_int(spans.same_process.as_ref())?.map(|same| same == 0),
        is_per_fifo_step: spans.hook == StepHook::Record,
        step: in_range("step", step.into())?,
        bytes: match (&spans.size, &spans.slots) {
            (Some(size), _) if spans.summed.is_none() => Some(record.unsigned(size)?),
            // A send is reported before its slot is reset.
            (_, Some(slots)) if moment == StepMoment::Sent => slot_size(slots, record, step)?,
            _ => None,
        },
        bytes_before: None,
        bytes_sum: match (&spans.size, &spans.summed) {
            // NCCL can exchange receives between the other places of the args, with their sums.
            (Some(size), Some([args, place])) if record.int(place)? == 0 => Some(BytesSum {
                place: record.unsigned(args)?,
                bytes: record.unsigned(size)?,
                lacks_this: spans.adds_later && moment == StepMoment::Sent,
            }),
            _ => None,
        },
    })
}

/// Decodes a record of a slot that is given back. A record whose size could not be read counts, too: an
/// earlier size must not be taken for that of the message that comes next.
pub(super) fn send_size(spans: &SendSizeSpans, record: &RecordView<'_>) -> Result<SendSizeEvent> {
    let bytes = if_readable(record.int(&spans.bytes))?.and_then(|bytes| u64::try_from(bytes).ok());
    Ok(SendSizeEvent { origin: record.origin(), bytes })
}

/// Reads the size in the slot of this FIFO step; `None` if the slot is not in use.
fn slot_size(spans: &SlotSizesSpans, record: &RecordView<'_>, step: i32) -> Result<Option<u64>> {
    let entries = u64::from(spans.entries.len / spans.entry_bytes.max(1)).max(1);
    let slot = record.unsigned(&spans.base)?.wrapping_add(step.unsigned_abs().into()) % entries;
    let entry = u16::try_from(slot).ok().and_then(|slot| slot.checked_mul(spans.entry_bytes));
    let Some(at) = entry.and_then(|entry| entry.checked_add(spans.size_at)) else { return Ok(None) };
    let size = record.signed(&spans.entries.part(at, spans.size_bytes))?;
    Ok(u64::try_from(size).ok())
}

/// Decodes an `ncclProxyProfileState` (2.16 to 2.22, src/include/profiler.h; plain numbers, whose meaning
/// depends on the direction).
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
