//! Calls of NCCL's API: lines of `api`.

use std::borrow::Cow;

use nccl_library::nccl::Name;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{communicator::RankKey, observed::Observed, stack::StackId};

/// An address in the target: a string, as JSON's readers lose digits of large numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer(pub u64);

impl Serialize for Pointer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Pointer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.strip_prefix("0x").ok_or_else(|| D::Error::custom("an address begins with 0x"))?;
        u64::from_str_radix(digits, 16).map(Self).map_err(D::Error::custom)
    }
}

/// A call on its way to sinks.
#[derive(Clone, Debug)]
pub struct ApiCall {
    /// `None`: the program gave a communicator that cannot be read.
    pub rank: Option<RankKey>,
    pub row: ApiCallRow,
}

row! {
    /// A line of `api`: one call. What a function does not have is `null`.
    pub struct ApiCallRow {
        /// `ncclComm.opCount` at the call, as NCCL's own log line of it has (`NCCL_DEBUG_SUBSYS=COLL`). It
        /// counts launches that start the proxy, not calls.
        "opCount": Measured, op_count: Option<u64>;
        /// This rank.
        "rank": Identity, rank: Option<i32>;
        /// `AllReduce` `AllGather` `ReduceScatter` `Broadcast` `Reduce` `Send` `Recv` `AlltoAll` `Gather`
        /// `Scatter` `PutSignal` `Signal` `WaitSignal` …: NCCL's name of the call. `ncclBcast` is a
        /// `Broadcast`.
        "function": Measured, function: Name;
        /// As the program gave it: of the vector (all-reduce, broadcast, reduce, send, receive), of each
        /// rank's part (all-gather, reduce-scatter, all-to-all, gather, scatter).
        "count": Measured "elements", count: u64;
        /// `count` times the size of an element.
        "bytes": Derived "bytes", bytes: Option<u64>;
        /// By the library's own names, or those of nccl.h; `null`: there is no such type, and NCCL will refuse
        /// the call; or with `byArguments` the function has none.
        "datatype": Measured, datatype: Option<Name>;
        /// Of reductions: `sum` `prod` `max` `min` `avg`; `user`: an operator that the program made
        /// (`ncclRedOpCreatePreMulSum` is the only maker), or a number that is none.
        "redop": Measured, redop: Option<Name>;
        /// Of `user`: the number that the program gave.
        "redopHandle": Measured, redop_handle: Option<i32>;
        /// Root of a collective that has one.
        "root": Measured, root: Option<i32>;
        /// Peer of a send, receive or one-sided call.
        "peer": Measured, peer: Option<i32>;
        /// Address; a receive has none.
        "sendbuff": Measured, sendbuff: Option<Pointer>;
        /// Address; a send has none.
        "recvbuff": Measured, recvbuff: Option<Pointer>;
        /// `cudaStream_t`
        "stream": Measured, stream: Pointer;
        /// `ncclComm_t`
        "comm": Measured, comm: Pointer;
        /// As the folder, without an instance number.
        "commHash": Identity, comm_hash: Option<Name>;
        /// Size of the communicator.
        "nRanks": Measured, n_ranks: Option<i32>;
        /// Calls of this rank on this communicator that were seen before this one. Lines are in the order in
        /// which the calls ended; this is the order in which they began. `null` in a part of a recording,
        /// and in windows but the first that were put together.
        "call": Derived, call: Option<u64>;
        /// Collectives that NCCL had launched on the communicator before the call. A call outside of a group,
        /// with nothing pending, becomes the op with `seq` = 2 × `launched` of `proxy_flow`.
        "launched": Measured, launched: Option<u64>;
        /// CLOCK_MONOTONIC. Add `clock.offset_ns` of `session.json` for wall time.
        "ts_ns": Measured "ns", ts_ns: u64;
        /// Process as ncclflow sees it.
        "pid": Identity, pid: u32;
        /// Thread in the initial PID namespace.
        "tid": Identity, tid: u32;
        /// Host name.
        "host": Identity, host: Name;
        /// With `--returns`: the exported function that returned: `ncclAllReduce`, `ncclAllReduceConfig` …
        "called": Measured, called: Observed<Cow<'static, str>>, unless is_absent;
        /// With `--returns`: time on the calling thread from `ncclEnqueueCheck` to the return. The cost of
        /// the probes is in it: about one trap.
        "host_ns": Measured "ns", host_ns: Observed<u64>, unless is_absent;
        /// With `--returns`: `ncclSuccess`, `ncclInvalidArgument` …; `ncclInProgress` of a communicator that
        /// does not block: the work goes on elsewhere. Inside of a group NCCL does the work, and finds its
        /// errors, in `ncclGroupEnd`.
        "result": Measured, result: Observed<Name>, unless is_absent;
        /// With `--api`: `seq` of its op in `proxy_flow`; `null`: it has none (one rank, nothing to send, an
        /// error), several (`AlltoAll`, `Gather`, `Scatter`, which their ops' `apiCall` names), or it is not
        /// known for certain which.
        "seq": Derived, seq: Observed<u64>, unless is_absent;
        /// As in `proxy_flow`: `seq` is counted from the beginning of the part.
        "seqLocal": Derived, seq_local: Option<bool>, unless is_none;
        /// `true`: the layouts of the library are not known, so the call was recorded by the arguments of its
        /// exported function. Of the communicator `comm` is known, its address in this process.
        "byArguments": Identity, by_arguments: Option<bool>, unless is_none;
        /// With `--stacks`: the call stack, a `stack` of `stacks.jsonl`.
        "stack": Measured, stack: Option<StackId>, unless is_none;
    }
}

row! {
    /// A line of a process's file: a call of an exported function that belongs to no rank, with `--returns`.
    pub struct OtherCallRow {
        /// As exported: `ncclGroupEnd` …
        "function": Measured, function: Cow<'static, str>;
        /// CLOCK_MONOTONIC of the entry; of the return where the entry was not seen.
        "ts_ns": Measured "ns", ts_ns: u64;
        /// Process as ncclflow sees it.
        "pid": Identity, pid: u32;
        /// Thread in the initial PID namespace.
        "tid": Identity, tid: u32;
        /// Host name.
        "host": Identity, host: Name;
        /// Time on the calling thread; `null`: the entry or the return was not seen.
        "host_ns": Measured "ns", host_ns: Option<u64>;
        /// `ncclSuccess` …; `null`: the return was not seen.
        "result": Measured, result: Option<Name>;
    }
}
