//! An op on a channel: a line of `proxy_flow`.

use nccl_library::nccl::{Algorithm, Direction, Name, Pattern, Protocol, Transport};

use super::{
    communicator::RankKey,
    observed::Observed,
    outcome::Outcome,
    stack::{StackId, StackOf},
};

/// An op on its way to sinks.
#[derive(Clone, Debug)]
pub struct Op {
    pub rank: RankKey,
    pub row: OpRow,
    /// Bytes that the op was called with, where they are known. Not part of the row.
    pub call_bytes: Option<u64>,
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
        /// Of a message.
        "sliceSteps": Planned "FIFO steps", slice_steps: u64;
        /// Of a chunk.
        "chunkSteps": Planned "FIFO steps", chunk_steps: u64;
        /// Element type by the library's own name (`float32`). All-gather, broadcast and p2p count bytes:
        /// `int8`.
        "dtype": Planned, dtype: Option<Name>;
        /// Reduction by the library's own name (`sum`).
        "redOp": Planned, red_op: Option<Name>;
        /// `RING` `RING_TWICE` `PIPELINE_FROM` `PIPELINE_TO` `TREE_UP` `TREE_DOWN` `TREE_UP_DOWN`
        /// `COLLNET_CHAIN` `COLLNET_DIRECT` `NVLS` `NVLS_TREE` `PAT_UP` `PAT_DOWN` `SEND` `RECV`
        "pattern": Planned, pattern: Pattern;
        /// `LL` `LL128` `SIMPLE`
        "protocol": Planned, protocol: Protocol;
        /// The rank before this one in the channel's ring.
        "ringPrev": Planned, ring_prev: i32;
        /// The rank after this one in the channel's ring.
        "ringNext": Planned, ring_next: i32;
        /// `RING` `TREE` …; `null` for p2p and before 2.24.
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
        /// As the folder, without an instance number.
        "commHash": Identity, comm_hash: Name;
        /// Names the op on all its ranks and channels: see below.
        "seq": Derived, seq: u64;
        /// NCCL queued the op for the proxy thread: its post pass was seen.
        "posted": Measured, posted: bool;
        /// A peer has a proxy; if not there is no post pass, as between GPUs on NVLink.
        "needed": Planned, needed: bool;
        /// The plan pass was seen; `false` where the recording began between the two, and for replays of CUDA
        /// graphs.
        "planned": Measured, planned: bool;
        /// CLOCK_MONOTONIC of the plan pass (of the post pass if only that was seen); where whole plans are
        /// seen, of the moment after the launch. Add `clock.offset_ns` of `session.json` for wall time.
        "ts_ns": Measured "ns", ts_ns: u64;
        /// The same of the post pass; `null`: it was not seen.
        "post_ts_ns": Measured "ns", post_ts_ns: Option<u64>;
        /// Process as ncclflow sees it.
        "pid": Identity, pid: u32;
        /// Thread in the initial PID namespace.
        "tid": Identity, tid: u32;
        /// Host name.
        "host": Identity, host: Name;
        /// Elements of `dtype` of the whole collective, as NCCL has them; `null` where not known.
        "count": Planned "elements", count: Option<u64>;
        /// Of the whole p2p call, over all channels (2.23 and later).
        "bytes": Planned "bytes", bytes: Option<u64>;
        /// Payload of this channel's part (2.20 and later; up to 2.23 of rings, chains, trees and PAT, as the
        /// device work says it).
        "channelSize": Planned "bytes", channel_size: Option<u64>;
        /// Where this channel's part begins in the payload (2.24 and later).
        "loopOffset": Planned "bytes", loop_offset: Option<u64>;
        /// The user's buffer is registered: data does not pass through the FIFO.
        "registered": Planned, registered: bool;
        /// This rank's place in the channel's ring.
        "ringIndex": Planned, ring_index: i32;
        /// Parent in the channel's tree; -1: nobody.
        "treeUp": Planned, tree_up: i32;
        /// Children in the channel's tree; -1: nobody.
        "treeDown": Planned, tree_down: [i32; 3];
        /// A CUDA graph's replay: the `seq` of the op that was captured.
        "capturedSeq": Derived, captured_seq: Option<u64>;
        /// Records of this process were lost while the op was seen: peers, or with `--level steps` what was
        /// measured, can be missing. What is there is right. `false`: nothing is missing for want of a
        /// record.
        "incomplete": Measured, #[serde(default)] incomplete: bool;
        /// NCCL made the op and forgot it, as it needs no proxy: its numbers are computed from its plan's
        /// device work by NCCL's own rules.
        "derived": Derived, #[serde(default)] derived: bool;
        /// With `--level steps`, of ops that have messages to measure: how what was measured compares with
        /// what was planned. `as_planned`: as many messages, each (whose size was seen) of the planned bytes,
        /// or not above a capacity; `other_bytes` (should not be); `session_ended`: messages were on their
        /// way when the session ended, as the job goes on, hangs, has aborted or is gone; `selection_ended`:
        /// in a part of a recording, messages were on their way a minute after it, and what came then was not
        /// read; `records_lost`: by ncclflow; `given_up`, `too_many_messages`: more than are kept;
        /// `messages_unknown`: PAT whose messages do not follow from its plan
        /// ([LIMITATIONS.md](LIMITATIONS.md)); `proxy_not_known`: another process's proxy sends some of them
        /// (PXN), and it is not recorded, or cannot be told for certain; `left_out`: not asked for
        /// (`--steps-every`, `--channels`, `--min-bytes`). Of an op that was posted before the session began
        /// there is no line.
        "measured": Measured, measured: Option<Outcome>, unless is_none;
        /// Only in a part of a recording, and where windows were put together: `true` if `seq` and
        /// `capturedSeq` are counted from the beginning of the part, and are others in the whole. So are
        /// sends and receives, and collectives of jobs that replay CUDA graphs; NCCL itself counts all other
        /// collectives.
        "seqLocal": Derived, seq_local: Option<bool>, unless is_none;
        /// With `--api`: the `call` of `api_rank<r>.jsonl` that it comes from; `null`: not known for certain,
        /// as calls that are alike wait in one group; or a replay of a CUDA graph, or called before the
        /// recording; or where calls have no number.
        "apiCall": Derived, api_call: Observed<u64>, unless is_absent;
        /// With `--stacks`: the call stack behind the op, a `stack` of `stacks.jsonl`. A replay of a CUDA graph has that
        /// of the op that was captured.
        "stack": Measured, stack: Option<StackId>, unless is_none;
        /// There as `stack` is. `launch`: it is that of the launch of the op's kernel, often in `ncclGroupEnd`; `call`:
        /// with `--api`, or where ops need it to be known (before NCCL 2.23), of the call of the API.
        "stack_of": Measured, stack_of: Option<StackOf>, unless is_none;
        /// One for each `SaveProxy` call: objects with the keys below.
        "peers": Planned, peers: Vec<PeerRow>;
    }
}

row! {
    /// One of an op's `peers`.
    pub struct PeerRow {
        /// `SEND` or `RECV`.
        "op": Planned, op: Direction;
        /// With whom.
        "peer": Planned, peer: i32;
        /// The peer is no rank: the network's own reduction (SHARP), or NVLS.
        "pseudo": Derived, pseudo: bool;
        /// With this peer; `null`: not known (PAT).
        "nsteps": Planned "FIFO steps", nsteps: Option<u64>;
        /// Messages that have no `flow_steps` line: those beyond 131,072.
        "messagesLeftOut": Derived, #[serde(default)] messages_left_out: u64;
        /// `NET` `P2P` `SHM` `COL` …
        "transport": Planned, transport: Transport;
        /// This connection has a proxy.
        "proxy": Planned, proxy: bool;
        /// Only where the proxy of another process serves the connection (PXN; told from 2.18 on): that
        /// process's rank in this communicator; `null` before 2.23.
        "proxyRank": Planned, proxy_rank: Observed<i32>, unless is_absent;
        /// There as `proxyRank` is: the process, with `--level steps` and if it is recorded; else `null`.
        "proxyPid": Derived, proxy_pid: Observed<u32>, unless is_absent;
        /// NCCL's index of the connection.
        "connIndex": Planned, conn_index: i32;
        /// With `--level steps`: messages that came to their end.
        "messagesMeasured": Measured, messages_measured: Option<u64>, unless is_none;
        /// With `--level steps`: of the messages whose size was seen.
        "bytesMeasured": Measured "bytes", bytes_measured: Option<u64>, unless is_none;
    }
}

impl OpRow {
    /// Whether something was looked for in its messages: they say more than the op does.
    pub fn has_measured_messages(&self) -> bool {
        self.peers.iter().any(|peer| peer.messages_measured.is_some())
    }
}
