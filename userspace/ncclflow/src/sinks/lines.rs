//! The lines of `proxy_flow` and `flow_steps`: keys, their order and their meaning (docs/OUTPUT.md).

use flow::schema::HostInfo;
use serde::Serialize;

use flow::{
    decode::{ProxyOwner, ProxyRank},
    model::{BytesKind, FlowRecord, Outcome, PeerFlow, Stage, Transfer, Waits, transfers_left_out},
};
use nccl_library::nccl::{Algorithm, Direction, Pattern, Protocol};

/// A line of `proxy_flow`: one op on one channel.
#[expect(clippy::struct_excessive_bools, reason = "each is a key of the line, with a meaning of its own")]
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyFlowLine<'a> {
    op_count: u64,
    rank: i32,
    channel: u32,
    nsteps: u64,
    nbytes: i64,
    chunk_size: u64,
    slice_steps: u64,
    chunk_steps: u64,
    dtype: Option<&'a str>,
    red_op: Option<&'a str>,
    pattern: Pattern,
    protocol: Protocol,
    ring_prev: i32,
    ring_next: i32,
    algorithm: Option<Algorithm>,
    coll: Option<&'a str>,
    coll_api: Option<&'a str>,
    root: i32,
    n_ranks: i32,
    comm_hash: &'a str,
    seq: u64,
    posted: bool,
    needed: bool,
    planned: bool,
    #[serde(rename = "ts_ns")]
    ts_ns: u64,
    #[serde(rename = "post_ts_ns")]
    post_ts_ns: Option<u64>,
    pid: u32,
    tid: u32,
    host: &'a str,
    count: Option<u64>,
    bytes: Option<u64>,
    channel_size: Option<u64>,
    loop_offset: Option<u64>,
    registered: bool,
    ring_index: i32,
    tree_up: i32,
    tree_down: [i32; 3],
    captured_seq: Option<u64>,
    incomplete: bool,
    derived: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Outcome>,
    peers: Vec<PeerLine<'a>>,
}

/// Whose proxy executes the op's part with a peer, where that is another process (PXN).
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ElsewhereKeys {
    /// Rank in this communicator; 2.23 and later.
    proxy_rank: Option<i32>,
    /// `null`: not known.
    proxy_pid: Option<u32>,
}

/// A peer inside a `proxy_flow` line.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerLine<'a> {
    op: Direction,
    peer: i32,
    /// The peer is no rank: the network's own reduction (SHARP), or NVLS.
    pseudo: bool,
    nsteps: Option<u64>,
    /// Messages that have no `flow_steps` line, because there would be too many.
    messages_left_out: u64,
    transport: &'a str,
    proxy: bool,
    #[serde(flatten)]
    elsewhere: Option<ElsewhereKeys>,
    conn_index: i32,
    /// Messages that came to their end.
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_measured: Option<u64>,
    /// Bytes of the messages whose size was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_measured: Option<u64>,
}

impl<'a> ProxyFlowLine<'a> {
    pub fn new(record: &'a FlowRecord, comm_hash: &'a str, host: &'a HostInfo) -> Self {
        let origin = record.origin();
        let op = &record.op;
        Self {
            op_count: op.op_count,
            rank: record.comm.rank,
            channel: op.channel,
            nsteps: op.nsteps,
            nbytes: op.nbytes,
            chunk_size: op.chunk_size,
            slice_steps: op.slice_steps,
            chunk_steps: op.chunk_steps,
            dtype: op.dtype.as_deref(),
            red_op: op.red_op.as_deref(),
            pattern: op.pattern,
            protocol: op.protocol,
            ring_prev: record.ring.prev,
            ring_next: record.ring.next,
            algorithm: op.algorithm,
            coll: record.coll(),
            coll_api: record.coll_api(),
            root: op.root,
            n_ranks: record.comm.n_ranks,
            comm_hash,
            seq: record.seq,
            posted: record.posted,
            needed: record.needed,
            planned: record.planned,
            ts_ns: origin.map_or(0, |origin| origin.ts_ns),
            post_ts_ns: record.posted_at.map(|origin| origin.ts_ns),
            pid: host.pid,
            tid: origin.map_or(0, |origin| origin.tid),
            host: &host.host,
            count: record.count,
            bytes: record.task.as_ref().and_then(|task| task.p2p_bytes),
            channel_size: op.channel_size.filter(|_| !op.pattern.is_p2p()),
            loop_offset: op.loop_offset.filter(|_| !op.pattern.is_p2p()),
            registered: op.registered,
            ring_index: record.ring.index,
            tree_up: record.tree.up,
            tree_down: record.tree.down,
            captured_seq: record.captured_seq,
            incomplete: record.incomplete,
            derived: record.derived,
            measured: record.outcome,
            peers: record.peers.iter().map(|peer| PeerLine::new(record, peer)).collect(),
        }
    }
}

impl<'a> PeerLine<'a> {
    fn new(record: &FlowRecord, peer: &'a PeerFlow) -> Self {
        Self {
            op: peer.direction,
            peer: peer.peer,
            pseudo: peer.peer >= record.comm.n_ranks,
            nsteps: peer.nsteps,
            messages_left_out: transfers_left_out(record, peer),
            transport: &peer.transport,
            proxy: peer.has_proxy,
            elsewhere: peer.owner.and_then(ProxyOwner::elsewhere).map(|rank| ElsewhereKeys {
                proxy_rank: match rank {
                    ProxyRank::Rank(rank) => Some(rank),
                    ProxyRank::TopRank(_) => None,
                },
                proxy_pid: peer.proxy_pid,
            }),
            conn_index: peer.connection_index,
            messages_measured: peer.measured.as_ref().map(|measured| measured.totals().0),
            bytes_measured: peer.measured.as_ref().map(|measured| measured.totals().1),
        }
    }
}

/// A line of `flow_steps`: one message with one peer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowStepLine<'a> {
    op_count: u64,
    rank: i32,
    channel: u32,
    step: u64,
    op: Direction,
    peer: i32,
    bytes: u64,
    pattern: Pattern,
    protocol: Protocol,
    stage: Stage,
    slots: u64,
    #[serde(rename = "bytes_kind")]
    bytes_kind: BytesKind,
    #[serde(rename = "loop")]
    loop_index: u64,
    ring_step: Option<u64>,
    slice: u64,
    chunk: Option<u64>,
    transport: &'a str,
    seq: u64,
    comm_hash: &'a str,
    posted: bool,
    #[serde(flatten)]
    measured: Option<MeasuredKeys>,
}

/// The measured part of a `flow_steps` line, and the waits that follow from it. Nanoseconds; `null` where it was not seen.
#[derive(Debug, Serialize)]
#[allow(clippy::struct_field_names, reason = "the names of the keys")]
struct MeasuredKeys {
    t_start_ns: Option<u64>,
    t_posted_ns: Option<u64>,
    t_ready_ns: Option<u64>,
    t_sent_ns: Option<u64>,
    t_arrived_ns: Option<u64>,
    t_handed_ns: Option<u64>,
    t_end_ns: Option<u64>,
    bytes_measured: Option<u64>,
    /// Whose proxy it was, where it was another process's than this rank's.
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_pid: Option<u32>,
    t_slot_free_ns: Option<u64>,
    wait_gpu_ready_ns: Option<u64>,
    wait_peer_buffer_ns: Option<u64>,
    wait_gpu_ready_or_peer_buffer_ns: Option<u64>,
    wait_network_ns: Option<u64>,
    wait_flush_ns: Option<u64>,
    wait_gpu_consume_ns: Option<u64>,
    wait_flush_or_gpu_consume_ns: Option<u64>,
}

impl MeasuredKeys {
    fn new(peer: &PeerFlow, index: usize) -> Option<Self> {
        let measured = peer.measured.as_ref()?;
        let message = measured.messages.get(index)?;
        let slot_free = measured.slot_free(index);
        let waits = Waits::of(peer.direction, message, slot_free);
        Some(Self {
            t_start_ns: message.start,
            t_posted_ns: message.posted,
            t_ready_ns: message.ready,
            t_sent_ns: message.sent,
            t_arrived_ns: message.arrived,
            t_handed_ns: message.handed,
            t_end_ns: message.end,
            bytes_measured: message.bytes,
            proxy_pid: peer.proxy_pid,
            t_slot_free_ns: slot_free,
            wait_gpu_ready_ns: waits.gpu_ready,
            wait_peer_buffer_ns: waits.peer_buffer,
            wait_gpu_ready_or_peer_buffer_ns: waits.gpu_ready_or_peer_buffer,
            wait_network_ns: waits.network,
            wait_flush_ns: waits.flush,
            wait_gpu_consume_ns: waits.gpu_consume,
            wait_flush_or_gpu_consume_ns: waits.flush_or_gpu_consume,
        })
    }
}

impl<'a> FlowStepLine<'a> {
    /// `index`: which of the peer's messages it is.
    pub fn new(
        record: &FlowRecord,
        peer: &'a PeerFlow,
        index: usize,
        transfer: &Transfer,
        comm_hash: &'a str,
    ) -> Self {
        Self {
            op_count: record.op.op_count,
            rank: record.comm.rank,
            channel: record.op.channel,
            step: transfer.step,
            op: peer.direction,
            peer: peer.peer,
            bytes: transfer.bytes,
            pattern: record.op.pattern,
            protocol: record.op.protocol,
            stage: transfer.stage,
            slots: transfer.slots,
            bytes_kind: transfer.bytes_kind,
            loop_index: transfer.loop_index,
            ring_step: transfer.ring_step,
            slice: transfer.slice,
            chunk: transfer.chunk,
            transport: &peer.transport,
            seq: record.seq,
            comm_hash,
            // A peer without a proxy is passed over by the post pass.
            posted: record.posted && peer.has_proxy,
            measured: MeasuredKeys::new(peer, index),
        }
    }
}
