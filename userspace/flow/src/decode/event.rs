//! Events: what a record says, in NCCL's terms and with names instead of numbers.

use serde::Serialize;

use super::{
    ApiCallEvent, ApiEntryEvent, ApiLineEvent, ApiReturnEvent, PlanEvent, PlanPartEvent, ProxyOpEvent,
    ProxyPeerEvent, ProxyStepEvent, SendSizeEvent, StackEvent,
};

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
}
