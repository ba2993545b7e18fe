//! An op on a channel: a line of `proxy_flow`.

use super::{
    api_call::Pointer,
    communicator::RankKey,
    named::named,
    observed::Observed,
    stack::{StackId, StackOf},
};
use nccl_library::nccl::{Algorithm, Direction, Name, Pattern, Protocol, Transport};

/// An op on its way to sinks.
#[derive(Clone, Debug)]
pub struct Op {
    pub rank: RankKey,
    pub row: OpRow,
    /// Bytes that the op was called with, where they are known. Not part of the row.
    pub call_bytes: Option<u64>,
}

named! {
    /// Outcome of an op whose messages are measured. Variants are in the order of their names, as keys of
    /// JSON objects are.
    #[derive(PartialOrd, Ord, Hash)]
    Outcome {
        /// All planned messages came to their end; each of those whose size was seen has as many bytes as
        /// planned, or, where a capacity is planned, not more.
        AsPlanned = "as_planned",
        /// Measuring was given up: too many ops were on their way, as in a job that hangs.
        GivenUp = "given_up",
        /// Left out by `--steps-every`, `--channels` or `--min-bytes`.
        LeftOut = "left_out",
        /// The number of the op's messages is not known.
        MessagesUnknown = "messages_unknown",
        /// All messages came to their end, and one had another size.
        OtherBytes = "other_bytes",
        /// Another process's proxy executes a part of the op (PXN), and no recorded process claims to be that
        /// process, or several do.
        ProxyNotKnown = "proxy_not_known",
        /// Records of the op's process were lost while the op ran: ncclflow misses them, not the job.
        RecordsLost = "records_lost",
        /// Messages were on their way at the end of the part of a recording that was read; what came later
        /// was not read.
        SelectionEnded = "selection_ended",
        /// Messages were on their way when the session ended: the job goes on, hangs, has aborted or is gone.
        SessionEnded = "session_ended",
        /// The op has more messages than are kept.
        TooManyMessages = "too_many_messages",
    }
}

named! {
    /// Launch without proxy ops.
    #[derive(PartialOrd, Ord, Hash)]
    LaunchKind {
        /// A kernel on symmetric memory (2.27 and later).
        Symmetric = "symmetric",
        /// Copies by copy engines (2.28 and later).
        CopyEngine = "copy_engine",
        /// Broadcasts of a group, planned together as `AllGatherV` (2.29 and later).
        Grouped = "grouped",
        /// One-sided calls of which no more is known (2.29 and later).
        OneSided = "one_sided",
        /// A one-sided call that the CPU's proxy makes.
        OneSidedByProxy = "one_sided_proxy",
        /// A one-sided call that a copy engine makes.
        OneSidedByCopy = "one_sided_copy",
    }
}

row! {
    /// A line of `proxy_flow`: one op on one channel. The first 14 keys are those of the older flow
    /// extractors, in their order.
    pub struct OpRow {
        /// NCCL's number of the op. Final if `posted`; otherwise relative to its launch plan. Bit 0 is 1 for
        /// p2p.
        "opCount": Planned, op_count: u64;
        /// This rank.
        "rank": Identity, rank: i32;
        /// NCCL channel.
        "channel": Identity, channel: u32;
        /// Steps of the op on this channel.
        "nsteps": Planned "FIFO steps", nsteps: u64;
        /// Capacity of the slots that one message takes; not what is sent.
        "nbytes": Planned "bytes", nbytes: i64;
        /// Size of a chunk; from 2.20 of payload.
        "chunkSize": Planned "bytes", chunk_size: u64;
        /// FIFO steps of a message.
        "sliceSteps": Planned "FIFO steps", slice_steps: u64;
        /// FIFO steps of a chunk.
        "chunkSteps": Planned "FIFO steps", chunk_steps: u64;
        /// Element type by the library's own name (`float32`). All-gather, broadcast and p2p count bytes:
        /// `int8`.
        "dtype": Planned, dtype: Option<Name>;
        /// Reduction by the library's own name (`sum`).
        "redOp": Planned, red_op: Option<Name>;
        /// NCCL's pattern of the op: `RING` `RING_TWICE` `PIPELINE_FROM` `PIPELINE_TO` `TREE_UP` `TREE_DOWN`
        /// `TREE_UP_DOWN` `COLLNET_CHAIN` `COLLNET_DIRECT` `NVLS` `NVLS_TREE` `PAT_UP` `PAT_DOWN` `SEND`
        /// `RECV`; of launches without proxy ops, which NCCL gives none: `SYMMETRIC` `COPY_ENGINE`
        /// `GROUPED` `ONE_SIDED`
        "pattern": Planned, pattern: Pattern;
        /// NCCL's protocol: `LL` `LL128` `SIMPLE`; `NONE`: a launch without proxy ops
        "protocol": Planned, protocol: Protocol;
        /// The rank before this one in the channel's ring.
        "ringPrev": Planned, ring_prev: i32;
        /// The rank after this one in the channel's ring.
        "ringNext": Planned, ring_next: i32;
        /// NCCL's algorithm: `RING` `TREE` …; `null` for p2p and before 2.24.
        "algorithm": Planned, algorithm: Option<Algorithm>;
        /// The function that NCCL runs: `AllReduce` … `Send` `Recv`.
        "coll": Planned, coll: Option<Name>;
        /// The function that was called; differs from `coll` where an all-to-all runs as sends and receives
        /// (2.28 and later).
        "collApi": Planned, coll_api: Option<Name>;
        /// Root of a collective, peer of a p2p op.
        "root": Planned, root: i32;
        /// Size of the communicator.
        "nRanks": Planned, n_ranks: i32;
        /// Hash of the communicator: the name of its folder without an instance number.
        "commHash": Identity, comm_hash: Name;
        /// Number that names the op on all its ranks and channels: see below.
        "seq": Derived, seq: u64;
        /// NCCL queued the op for the proxy thread: its post pass was seen.
        "posted": Measured, posted: bool;
        /// A peer has a proxy; if not there is no post pass, as between GPUs on NVLink.
        "needed": Planned, needed: bool;
        /// The plan pass was seen; `false` where the recording began between the plan and the post pass, and
        /// for replays of CUDA graphs.
        "planned": Measured, planned: bool;
        /// CLOCK_MONOTONIC of the plan pass (of the post pass if only that was seen); where whole plans are
        /// seen, of the moment after the launch. Add `clock.offset_ns` of `session.json` for wall time.
        "ts_ns": Measured "ns", ts_ns: u64;
        /// CLOCK_MONOTONIC of the post pass; `null`: it was not seen.
        "post_ts_ns": Measured "ns", post_ts_ns: Option<u64>;
        /// Process ID in ncclflow's PID namespace.
        "pid": Identity, pid: u32;
        /// Thread ID in the initial PID namespace.
        "tid": Identity, tid: u32;
        /// Host name.
        "host": Identity, host: Name;
        /// Elements of `dtype` of the whole collective, as NCCL has them; `null` where not known.
        "count": Planned "elements", count: Option<u64>;
        /// Size of the whole p2p call, over all channels (2.23 and later), or of the call of a launch without
        /// proxy ops.
        "bytes": Planned "bytes", bytes: Option<u64>;
        /// Payload of this channel's part (2.20 and later; up to 2.23 only for rings, chains, trees and PAT,
        /// from the device work).
        "channelSize": Planned "bytes", channel_size: Option<u64>;
        /// Offset at which this channel's part begins in the payload (2.24 and later).
        "loopOffset": Planned "bytes", loop_offset: Option<u64>;
        /// The user's buffer is registered: data does not pass through the FIFO.
        "registered": Planned, registered: bool;
        /// This rank's place in the channel's ring.
        "ringIndex": Planned, ring_index: i32;
        /// Parent in the channel's tree; -1: none.
        "treeUp": Planned, tree_up: i32;
        /// Children in the channel's tree; -1: none.
        "treeDown": Planned, tree_down: [i32; 3];
        /// `seq` of the op that a CUDA graph captured, if this op is a replay of it.
        "capturedSeq": Derived, captured_seq: Option<u64>;
        /// Number of the launch of a CUDA graph, among those of its process in what was read of the recording, by
        /// which this replay is known. What is in the line is what was captured; only the launch was seen, on the
        /// host, at `ts_ns`: the op's own times and its data were not. Such a line stands for the whole op: it has no channel, no steps, no
        /// messages and no peers, and `seq` is `capturedSeq`. Not there in lines of ops that the network proxy
        /// was seen to get.
        "graphLaunch": Derived, graph_launch: Option<u64>, unless is_none;
        /// Records of this process were lost while the op was seen: peers, or with `--level steps` what was
        /// measured, can be missing. What is there is right. `false`: nothing is missing for want of a
        /// record.
        "incomplete": Measured, #[serde(default)] incomplete: bool;
        /// NCCL made the op and forgot it, as it needs no proxy: its numbers are computed from its plan's
        /// device work by NCCL's own rules.
        "derived": Derived, #[serde(default)] derived: bool;
        /// Comparison of what was measured with what was planned, with `--level steps`, for ops that have
        /// messages to measure. `as_planned`: as many messages as planned, and each whose size was seen has
        /// the planned bytes, or not more than a capacity; `other_bytes`: a message had another size (should
        /// not be); `session_ended`: messages were on their way when the session ended, as the job goes on,
        /// hangs, has aborted or is gone; `selection_ended`: in a part of a recording, messages were on their
        /// way a minute after the part, and what came then was not read; `records_lost`: ncclflow lost
        /// records of the process; `given_up`: more ops were on their way than are kept; `too_many_messages`:
        /// the op has more messages than are kept; `messages_unknown`: PAT whose messages do not follow from
        /// its plan ([LIMITATIONS.md](LIMITATIONS.md)); `proxy_not_known`: another process's proxy sends some
        /// of the messages (PXN), and that process is not recorded, or cannot be told for certain;
        /// `left_out`: not asked for (`--steps-every`, `--channels`, `--min-bytes`). An op that was posted
        /// before the session began has no line.
        "measured": Measured, measured: Option<Outcome>, unless is_none;
        /// `true` if `seq` and `capturedSeq` are counted from the beginning of a part of a recording, and are
        /// other numbers in the whole; only in such a part, and where windows were put together. Counted so
        /// are sends and receives, and collectives of jobs that replay CUDA graphs; NCCL itself counts all
        /// other collectives.
        "seqLocal": Derived, seq_local: Option<bool>, unless is_none;
        /// `call` of the line of `api_rank<r>.jsonl` that the op comes from, with `--api`. `null`: not known
        /// for certain, as calls that are alike wait in one group; or the op is a replay of a CUDA graph, or
        /// was called before the recording; or calls have no number.
        "apiCall": Derived, api_call: Observed<u64>, unless is_absent;
        /// Call stack behind the op, with `--stacks`: a `stack` of `stacks.jsonl`. A replay of a CUDA graph
        /// has the stack of the op that was captured.
        "stack": Measured, stack: Option<StackId>, unless is_none;
        /// Moment that `stack` is of; there where `stack` is. `launch`: the launch of the op's kernel, often
        /// in `ncclGroupEnd`; `call`: the call of the API (with `--api`, or where ops need it to be known,
        /// before NCCL 2.23).
        "stack_of": Measured, stack_of: Option<StackOf>, unless is_none;
        /// Kind of a launch without proxy ops, which this line stands for: `symmetric`: a kernel on symmetric
        /// memory (2.27 and later); `copy_engine`: copies by copy engines (2.28 and later); `grouped`:
        /// broadcasts of a group, planned together (`AllGatherV`, 2.29 and later), where no channel has a
        /// proxy; `one_sided_proxy`, `one_sided_copy`: a one-sided call that the CPU's proxy or a copy engine
        /// makes (2.29 and later); `one_sided`: it is not known who. Such a line has no channel, no steps and
        /// no messages: those keys are 0, -1 or `NONE`.
        "launch": Planned, launch: Option<LaunchKind>, unless is_none;
        /// The library's name of the kernel on symmetric memory: function, the way in which the data goes,
        /// reduction and type (`AllReduce_AGxLLMC_R_sum_f32`); not there where the library's symbols do not
        /// tell.
        "kernel": Planned, kernel: Option<Name>, unless is_none;
        /// Calls that the launch serves, with `launch`; `null`: not known. Of a launch of several calls the
        /// counts and buffers are not known.
        "calls": Planned, calls: Observed<u64>, unless is_absent;
        /// Bytes of all calls of the launch, each rounded up to a multiple of 1,024, where there are several.
        "bytesAtMost": Planned "bytes", bytes_at_most: Option<u64>, unless is_none;
        /// Address of the buffer that is sent from, with `launch`.
        "sendBuffer": Planned, send_buffer: Option<Pointer>, unless is_none;
        /// Address of the buffer that is received into, with `launch`.
        "recvBuffer": Planned, recv_buffer: Option<Pointer>, unless is_none;
        /// NCCL's address of the window that is sent from, with `launch`.
        "sendWindow": Planned, send_window: Option<Pointer>, unless is_none;
        /// Offset in that window.
        "sendOffset": Planned "bytes", send_offset: Option<u64>, unless is_none;
        /// NCCL's address of the window that is received into or, of a one-sided call, the peer's.
        "recvWindow": Planned, recv_window: Option<Pointer>, unless is_none;
        /// Offset in that window.
        "recvOffset": Planned "bytes", recv_offset: Option<u64>, unless is_none;
        /// Peers of the op, one for each `SaveProxy` call, or of a one-sided call, for a wait up to 8:
        /// objects with the keys below.
        "peers": Planned, peers: Vec<PeerRow>;
    }
}

row! {
    /// An object of an op's `peers`.
    pub struct PeerRow {
    /// Direction: `SEND` or `RECV`.
        "op": Planned, op: Direction;
    /// Rank of the peer; with `pseudo`, a number that is no rank.
        "peer": Planned, peer: i32;
    /// The peer is no rank: the network's own reduction (SHARP), or NVLS.
        "pseudo": Derived, pseudo: bool;
    /// FIFO steps with this peer; `null`: not known (PAT).
        "nsteps": Planned "FIFO steps", nsteps: Option<u64>;
        /// Messages that have no `flow_steps` line: those beyond 131,072.
        "messagesLeftOut": Derived, #[serde(default)] messages_left_out: u64;
        /// Transport of the connection: `NET` `P2P` `SHM` `COL` …
        "transport": Planned, transport: Transport;
        /// This connection has a proxy.
        "proxy": Planned, proxy: bool;
        /// Rank, in this communicator, of the process whose proxy serves the connection, only where that is
        /// another process (PXN; told from 2.18 on); `null` before 2.23.
        "proxyRank": Planned, proxy_rank: Observed<i32>, unless is_absent;
        /// Process ID of that process, with `--level steps` and if it is recorded, else `null`; there where
        /// `proxyRank` is.
        "proxyPid": Derived, proxy_pid: Observed<u32>, unless is_absent;
        /// NCCL's index of the connection.
        "connIndex": Planned, conn_index: i32;
        /// Messages that came to their end, with `--level steps`.
        "messagesMeasured": Measured, messages_measured: Option<u64>, unless is_none;
        /// Bytes of the messages whose size was seen, with `--level steps`.
        "bytesMeasured": Measured "bytes", bytes_measured: Option<u64>, unless is_none;
    }
}

impl Op {
    /// Returns the bytes that the op was called with, or those of a send or receive.
    pub fn bytes(&self) -> Option<u64> {
        self.call_bytes.or(self.row.bytes)
    }
}

impl OpRow {
    /// Returns the function that was called, or else the one that NCCL runs.
    pub fn called(&self) -> Option<&Name> {
        self.coll_api.as_ref().or(self.coll.as_ref())
    }

    /// Tells whether messages were measured: their rows then say more than the op does.
    pub fn has_measured_messages(&self) -> bool {
        self.peers.iter().any(|peer| peer.messages_measured.is_some())
    }
}
