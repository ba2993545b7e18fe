//! Exported functions that are probed: for what they return, and, where NCCL's own structs are not known, for
//! what they are called with.

use serde::{Deserialize, Serialize};

/// An exported function, one of [`ApiFunction::all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ApiFunction(u8);

/// Meaning of an argument of a call that communicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    SendBuffer,
    RecvBuffer,
    Count,
    Datatype,
    ReductionOp,
    Root,
    Peer,
    /// `ncclComm_t`
    Comm,
    /// `cudaStream_t`
    Stream,
    /// Windows, offsets and signals of one-sided calls.
    Other,
}

use Argument::{Comm, Count, Datatype, Other, Peer, RecvBuffer, ReductionOp, Root, SendBuffer, Stream};

// Declared in nccl.h (src/nccl.h.in), with the same arguments in every version that has the function, as the
// debugging information of the official libraries has them (tests/api_functions.rs). All are integers and
// addresses. `…Config` takes one more, which is not read.
const UNROOTED: &[Argument] = &[SendBuffer, RecvBuffer, Count, Datatype, Comm, Stream];
const ROOTED: &[Argument] = &[SendBuffer, RecvBuffer, Count, Datatype, Root, Comm, Stream];
const REDUCING: &[Argument] = &[SendBuffer, RecvBuffer, Count, Datatype, ReductionOp, Comm, Stream];
const REDUCE: &[Argument] = &[SendBuffer, RecvBuffer, Count, Datatype, ReductionOp, Root, Comm, Stream];
const SEND: &[Argument] = &[SendBuffer, Count, Datatype, Peer, Comm, Stream];
const RECV: &[Argument] = &[RecvBuffer, Count, Datatype, Peer, Comm, Stream];
const PUT: &[Argument] =
    &[SendBuffer, Count, Datatype, Peer, Other, Other, Other, Other, Other, Comm, Stream];
const SIGNAL: &[Argument] = &[Peer, Other, Other, Other, Comm, Stream];
const WAIT: &[Argument] = &[Other, Other, Comm, Stream];

/// Exported names, 2.16 to 2.32; no version has all. `pnccl…` is the same address as `nccl…` in all of them.
/// The functions that communicate have their arguments here.
///
/// Left out: `ncclBcast`, which calls `ncclBroadcast`; `ncclGroupStart`, which only counts; and functions
/// that only ask (frameworks poll `ncclCommGetAsyncError`), allocate or register.
const FUNCTIONS: [(&str, &[Argument]); 32] = [
    ("ncclAllGather", UNROOTED),
    ("ncclAllGatherConfig", UNROOTED),
    ("ncclAllReduce", REDUCING),
    ("ncclAllReduceConfig", REDUCING),
    ("ncclAlltoAll", UNROOTED),
    ("ncclAlltoAllConfig", UNROOTED),
    ("ncclBroadcast", ROOTED),
    ("ncclBroadcastConfig", ROOTED),
    ("ncclGather", ROOTED),
    ("ncclGatherConfig", ROOTED),
    ("ncclPutSignal", PUT),
    ("ncclRecv", RECV),
    ("ncclReduce", REDUCE),
    ("ncclReduceConfig", REDUCE),
    ("ncclReduceScatter", REDUCING),
    ("ncclReduceScatterConfig", REDUCING),
    ("ncclScatter", ROOTED),
    ("ncclScatterConfig", ROOTED),
    ("ncclSend", SEND),
    ("ncclSignal", SIGNAL),
    ("ncclWaitSignal", WAIT),
    ("ncclGroupEnd", &[]),
    ("ncclCommAbort", &[]),
    ("ncclCommDestroy", &[]),
    ("ncclCommFinalize", &[]),
    ("ncclCommGrow", &[]),
    ("ncclCommInitAll", &[]),
    ("ncclCommInitRank", &[]),
    ("ncclCommInitRankConfig", &[]),
    ("ncclCommInitRankScalable", &[]),
    ("ncclCommShrink", &[]),
    ("ncclCommSplit", &[]),
];

impl ApiFunction {
    pub fn all() -> impl Iterator<Item = Self> {
        (0..).take(FUNCTIONS.len()).map(Self)
    }

    /// Returns the exported name: `ncclAllReduce`.
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// Tells whether the call goes through `ncclEnqueueCheck`, on the caller's thread, before it returns.
    pub fn communicates(self) -> bool {
        !self.arguments().is_empty()
    }

    /// Returns the arguments in their order, up to the stream, of a function that communicates.
    pub fn arguments(self) -> &'static [Argument] {
        self.entry().1
    }

    /// Returns NCCL's name of the call, as `ncclInfo.opName` has it: `AllReduce`, also of
    /// `ncclAllReduceConfig`.
    pub fn call_name(self) -> &'static str {
        let name = self.name();
        let name = name.strip_prefix("nccl").unwrap_or(name);
        name.strip_suffix("Config").unwrap_or(name)
    }

    fn entry(self) -> (&'static str, &'static [Argument]) {
        // Only numbers below the length are ever made.
        FUNCTIONS.get(usize::from(self.0)).copied().unwrap_or(("unknown", &[]))
    }
}

impl TryFrom<String> for ApiFunction {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::all()
            .find(|function| function.name() == name)
            .ok_or_else(|| format!("`{name}` is no function of NCCL's"))
    }
}

impl From<ApiFunction> for String {
    fn from(function: ApiFunction) -> Self {
        function.name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_survive_json() {
        for function in ApiFunction::all() {
            let text = serde_json::to_string(&function).unwrap();
            assert_eq!(serde_json::from_str::<ApiFunction>(&text).unwrap(), function);
        }
        assert_eq!(ApiFunction::all().count(), FUNCTIONS.len());
        assert!(serde_json::from_str::<ApiFunction>("\"ncclNone\"").is_err());
    }
}
