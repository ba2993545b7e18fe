//! Calls of NCCL's API: lines of `api`.

use std::borrow::Cow;

use nccl_library::nccl::Name;

use super::{communicator::RankKey, observed::Observed, stack::StackId, text_number::text_number};

text_number! {
    /// An address in the target.
    pub struct Pointer: "{:#x}", |text| text.strip_prefix("0x").ok_or("an address begins with 0x")
}

/// An API call on its way to sinks.
#[derive(Clone, Debug)]
pub struct ApiCall {
    /// `None`: the program gave a communicator that cannot be read.
    pub rank: Option<RankKey>,
    pub row: ApiCallRow,
}

row! {
    /// A line of `api`: one call. Arguments that the function does not have are `null`.
    pub struct ApiCallRow {
        /// `ncclComm.opCount` at the call, as in NCCL's own log line of the call (`NCCL_DEBUG_SUBSYS=COLL`).
        /// It counts launches that start the proxy, not calls.
        "opCount": Measured, op_count: Option<u64>;
        /// This rank.
        "rank": Identity, rank: Option<i32>;
        /// NCCL's name of the call: `AllReduce` `AllGather` `ReduceScatter` `Broadcast` `Reduce` `Send`
        /// `Recv` `AlltoAll` `Gather` `Scatter` `PutSignal` `Signal` `WaitSignal` … `ncclBcast` is a
        /// `Broadcast`.
        "function": Measured, function: Name;
        /// Elements, as the program gave them: of the vector (all-reduce, broadcast, reduce, send, receive),
        /// or of each rank's part (all-gather, reduce-scatter, all-to-all, gather, scatter).
        "count": Measured "elements", count: u64;
        /// `count` times the size of an element.
        "bytes": Derived "bytes", bytes: Option<u64>;
        /// Element type by the library's own names, or those of nccl.h. `null`: there is no such type, and
        /// NCCL will refuse the call; or, with `byArguments`, the function has none.
        "datatype": Measured, datatype: Option<Name>;
        /// Operator of a reduction: `sum` `prod` `max` `min` `avg`; `user`: an operator that the program made
        /// (`ncclRedOpCreatePreMulSum` is the only maker), or a number that is no operator.
        "redop": Measured, redop: Option<Name>;
        /// Number that the program gave for a `user` operator.
        "redopHandle": Measured, redop_handle: Option<i32>;
        /// Root of a collective that has one.
        "root": Measured, root: Option<i32>;
        /// Peer of a send, receive or one-sided call.
        "peer": Measured, peer: Option<i32>;
        /// Address of the send buffer; a receive has none.
        "sendbuff": Measured, sendbuff: Option<Pointer>;
        /// Address of the receive buffer; a send has none.
        "recvbuff": Measured, recvbuff: Option<Pointer>;
        /// CUDA stream: the `cudaStream_t` of the call.
        "stream": Measured, stream: Pointer;
        /// Communicator: the `ncclComm_t` of the call.
        "comm": Measured, comm: Pointer;
        /// Hash of the communicator: the name of its folder without an instance number.
        "commHash": Identity, comm_hash: Option<Name>;
        /// Size of the communicator.
        "nRanks": Measured, n_ranks: Option<i32>;
        /// Number of calls of this rank on this communicator that were seen before this one: the order in
        /// which calls began, where lines are in the order in which they ended. `null` in a part of a
        /// recording, and in all windows but the first where windows were put together.
        "call": Derived, call: Option<u64>;
        /// Collectives that NCCL had launched on the communicator before the call. A call outside of a group,
        /// with nothing pending, becomes the op with `seq` = 2 × `launched` of `proxy_flow`.
        "launched": Measured, launched: Option<u64>;
        /// CLOCK_MONOTONIC of the call. Add `clock.offset_ns` of `session.json` for wall time.
        "ts_ns": Measured "ns", ts_ns: u64;
        /// Process ID in ncclflow's PID namespace.
        "pid": Identity, pid: u32;
        /// Thread ID in the initial PID namespace.
        "tid": Identity, tid: u32;
        /// Host name.
        "host": Identity, host: Name;
        /// Exported function that returned, with `--returns`: `ncclAllReduce`, `ncclAllReduceConfig` …
        "called": Measured, called: Observed<Cow<'static, str>>, unless is_absent;
        /// Time on the calling thread from `ncclEnqueueCheck` to the return, with `--returns`. The cost of
        /// the probes is in it: about one trap.
        "host_ns": Measured "ns", host_ns: Observed<u64>, unless is_absent;
        /// Result that the function returned, with `--returns`: `ncclSuccess`, `ncclInvalidArgument` …;
        /// `ncclInProgress` from a communicator that does not block: the work goes on elsewhere. Inside of a
        /// group NCCL does the work, and finds its errors, in `ncclGroupEnd`.
        "result": Measured, result: Observed<Name>, unless is_absent;
        /// `seq` of the call's op in `proxy_flow`, with `--api`. `null`: the call has no op (one rank,
        /// nothing to send, an error), it has several (`AlltoAll`, `Gather`, `Scatter`; the `apiCall` of
        /// those ops names the call), or it is not known for certain which op it has.
        "seq": Derived, seq: Observed<u64>, unless is_absent;
        /// `seqLocal` as in `proxy_flow`: `true` if `seq` is counted from the beginning of the part of a
        /// recording.
        "seqLocal": Derived, seq_local: Option<bool>, unless is_none;
        /// `true`: the layouts of the library are not known, so the call was recorded by the arguments of its
        /// exported function. Of the communicator only `comm`, its address in this process, is known.
        "byArguments": Identity, by_arguments: Option<bool>, unless is_none;
        /// Call stack behind the call, with `--stacks`: a `stack` of `stacks.jsonl`.
        "stack": Measured, stack: Option<StackId>, unless is_none;
    }
}

row! {
    /// A line of a process's file: a call of an exported function that belongs to no rank, with `--returns`.
    pub struct OtherCallRow {
        /// Name of the exported function: `ncclGroupEnd` …
        "function": Measured, function: Cow<'static, str>;
        /// CLOCK_MONOTONIC of the entry; of the return where the entry was not seen.
        "ts_ns": Measured "ns", ts_ns: u64;
        /// Process ID in ncclflow's PID namespace.
        "pid": Identity, pid: u32;
        /// Thread ID in the initial PID namespace.
        "tid": Identity, tid: u32;
        /// Host name.
        "host": Identity, host: Name;
        /// Time on the calling thread from the entry to the return; `null`: one of the two was not seen.
        "host_ns": Measured "ns", host_ns: Option<u64>;
        /// Result that the function returned: `ncclSuccess` …; `null`: the return was not seen.
        "result": Measured, result: Option<Name>;
    }
}
