//! The exported functions whose host time and result `--returns` tells.

use serde::{Deserialize, Serialize};

/// One of [`ApiFunction::all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ApiFunction(u8);

/// What becomes of a call inside NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiKind {
    /// It goes through `ncclEnqueueCheck`, on the caller's thread, before it returns.
    Communicates,
    /// It does not.
    Manages,
}

use ApiKind::{Communicates, Manages};

/// Names as exported, 2.16 to 2.32; no version has all. `pnccl…` is the same address as `nccl…` in all of
/// them.
///
/// Left out: `ncclBcast`, which calls `ncclBroadcast`; `ncclGroupStart`, which only counts; what only asks
/// (`ncclCommGetAsyncError` is polled by frameworks), allocates or registers.
const FUNCTIONS: [(&str, ApiKind); 32] = [
    ("ncclAllGather", Communicates),
    ("ncclAllGatherConfig", Communicates),
    ("ncclAllReduce", Communicates),
    ("ncclAllReduceConfig", Communicates),
    ("ncclAlltoAll", Communicates),
    ("ncclAlltoAllConfig", Communicates),
    ("ncclBroadcast", Communicates),
    ("ncclBroadcastConfig", Communicates),
    ("ncclGather", Communicates),
    ("ncclGatherConfig", Communicates),
    ("ncclPutSignal", Communicates),
    ("ncclRecv", Communicates),
    ("ncclReduce", Communicates),
    ("ncclReduceConfig", Communicates),
    ("ncclReduceScatter", Communicates),
    ("ncclReduceScatterConfig", Communicates),
    ("ncclScatter", Communicates),
    ("ncclScatterConfig", Communicates),
    ("ncclSend", Communicates),
    ("ncclSignal", Communicates),
    ("ncclWaitSignal", Communicates),
    ("ncclGroupEnd", Manages),
    ("ncclCommAbort", Manages),
    ("ncclCommDestroy", Manages),
    ("ncclCommFinalize", Manages),
    ("ncclCommGrow", Manages),
    ("ncclCommInitAll", Manages),
    ("ncclCommInitRank", Manages),
    ("ncclCommInitRankConfig", Manages),
    ("ncclCommInitRankScalable", Manages),
    ("ncclCommShrink", Manages),
    ("ncclCommSplit", Manages),
];

impl ApiFunction {
    pub fn all() -> impl Iterator<Item = Self> {
        (0..).take(FUNCTIONS.len()).map(Self)
    }

    /// As exported: `ncclAllReduce`.
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    pub fn kind(self) -> ApiKind {
        self.entry().1
    }

    fn entry(self) -> (&'static str, ApiKind) {
        // Only numbers below the length are ever made.
        FUNCTIONS.get(usize::from(self.0)).copied().unwrap_or(("unknown", Manages))
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
