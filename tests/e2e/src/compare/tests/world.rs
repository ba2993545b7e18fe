//! Two ranks, one ring all-reduce and one send, as every witness tells it.

use crate::communicator::{CommHash, Member};
use crate::direction::Direction;
use crate::tracer::{BytesKind, FlowStep, ProxyFlow, RankTrace, Trace};
use crate::truth::debug_log::DebugLog;
use crate::truth::plugin::{CallId, Coll, P2p, PluginTruth, ProxyOp, RankTruth, State, Step};
use crate::truth::transfer_log::{Transfer, TransferLog};

pub(super) const HASH: CommHash = CommHash(0xabc);
/// The vector of the all-reduce: two chunks of 32 bytes, each two slices.
pub(super) const VECTOR: u64 = 64;
pub(super) const SLICES: [u64; 4] = [16; 4];
/// The send of rank 0 to rank 1.
pub(super) const PARTS: [u64; 2] = [70, 30];

pub(super) fn member(rank: i32) -> Member {
    Member { comm_hash: HASH, rank }
}

pub(super) fn flow(rank: i32, seq: u64, pattern: &str) -> ProxyFlow {
    let p2p = seq & 1 == 1;
    ProxyFlow {
        op_count: seq,
        rank,
        channel: u32::from(p2p),
        nsteps: if p2p { 2 } else { 8 },
        slice_steps: if p2p { 1 } else { 2 },
        pattern: pattern.into(),
        protocol: "SIMPLE".into(),
        ring_prev: 1 - rank,
        ring_next: 1 - rank,
        coll: Some(match pattern {
            "SEND" => "Send".into(),
            "RECV" => "Recv".into(),
            _ => "AllReduce".into(),
        }),
        root: if p2p { 1 - rank } else { 0 },
        n_ranks: 2,
        comm_hash: HASH,
        seq,
        posted: true,
        count: Some(VECTOR / 4),
        coll_api: None,
        needed: Some(true),
        measured: None,
        peers: Vec::new(),
    }
}

pub(super) fn steps(flow: &ProxyFlow, direction: Direction, sizes: &[u64]) -> Vec<FlowStep> {
    let line = |(index, bytes): (u64, &u64)| FlowStep {
        op_count: flow.op_count,
        rank: flow.rank,
        channel: flow.channel,
        step: index * u64::from(flow.slice_steps),
        direction,
        peer: 1 - flow.rank,
        bytes: *bytes,
        pattern: flow.pattern.clone(),
        protocol: flow.protocol.clone(),
        slots: u64::from(flow.slice_steps),
        stage: String::new(),
        bytes_kind: BytesKind::Exact,
        comm_hash: HASH,
        seq: flow.seq,
        measured: crate::tracer::Measured::default(),
        posted: flow.posted,
    };
    (0..).zip(sizes).map(line).collect()
}

pub(super) fn rank_trace(rank: i32) -> RankTrace {
    let all_reduce = flow(rank, 0, "RING_TWICE");
    let (p2p, direction) =
        if rank == 0 { (flow(0, 1, "SEND"), Direction::Send) } else { (flow(1, 1, "RECV"), Direction::Recv) };
    let steps = [
        steps(&all_reduce, Direction::Send, &SLICES),
        steps(&all_reduce, Direction::Recv, &SLICES),
        steps(&p2p, direction, &PARTS),
    ];
    RankTrace { flows: vec![all_reduce, p2p], steps: steps.concat() }
}

pub(super) fn trace() -> Trace {
    Trace { ranks: (0..2).map(|rank| (member(rank), rank_trace(rank))).collect() }
}

pub(super) fn plugin_op(call: u64, channel: u32, peer: i32, direction: Direction, sizes: &[u64]) -> ProxyOp {
    let telling = if direction == Direction::Send { 9 } else { 11 };
    let step = |(number, bytes): (i32, &u64)| Step {
        number,
        start: 0,
        stop: Some(1),
        states: vec![State { state: telling, t: 0, trans_size: Some(*bytes), steps: None }],
    };
    ProxyOp {
        api: 5,
        id: 0,
        call: Some(CallId { pid: 1, id: call }),
        channel,
        peer,
        direction,
        n_steps: i32::try_from(sizes.len()).unwrap(),
        chunk_size: 32,
        start: 0,
        stop: Some(2),
        states: Vec::new(),
        steps: (0..).zip(sizes).map(step).collect(),
    }
}

pub(super) fn rank_truth(rank: i32) -> RankTruth {
    let peer = 1 - rank;
    let coll = Coll {
        call: CallId { pid: 1, id: 10 },
        group: None,
        seq_number: 0,
        send_buff: None,
        func: "AllReduce".into(),
        count: VECTOR / 4,
        datatype: "ncclFloat32".into(),
        root: 0,
        algo: "RING".into(),
        proto: "SIMPLE".into(),
        n_channels: Some(1),
        n_max_channels: None,
        start: 0,
        stop: Some(1),
    };
    let (func, direction) = if rank == 0 { ("Send", Direction::Send) } else { ("Recv", Direction::Recv) };
    let p2p = P2p {
        call: CallId { pid: 1, id: 11 },
        group: None,
        func: func.into(),
        count: 100,
        datatype: "ncclInt8".into(),
        peer,
        n_channels: Some(1),
        start: 0,
        stop: Some(1),
    };
    let ops = vec![
        plugin_op(10, 0, peer, Direction::Recv, &SLICES),
        plugin_op(10, 0, peer, Direction::Send, &SLICES),
        plugin_op(11, 1, peer, direction, &PARTS),
    ];
    RankTruth { api: 5, pid: 1, n_ranks: Some(2), colls: vec![coll], p2ps: vec![p2p], ops, finalized: true }
}

pub(super) fn plugin_truth() -> PluginTruth {
    PluginTruth { ranks: (0..2).map(|rank| (member(rank), rank_truth(rank))).collect(), orphans: Vec::new() }
}

pub(super) fn debug_log(ring_next: i32) -> DebugLog {
    let lines = |rank: i32, next: i32| {
        let peer = 1 - rank;
        let head = format!("h:{rank}:{rank} [0] NCCL INFO");
        let comm = format!("comm 0x{rank}1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0xabc");
        let tree = if rank == 0 { "1/-1/-1->0->-1" } else { "-1/-1/-1->1->0" };
        format!(
            "{head} ncclCommInitRank {comm} - Init START\n{head} Ring 00 : {peer} -> {rank} -> {next}\n{head} Trees \
             [0] {tree}\n"
        )
    };
    DebugLog::parse(&format!("{}{}", lines(0, ring_next), lines(1, 0)))
}

pub(super) fn transfer(rank: i32, func: &str, channel: u32, direction: Direction, sizes: &[u64]) -> Transfer {
    Transfer {
        comm_hash: HASH,
        rank,
        launch: 0,
        op: u64::from(channel),
        func: func.into(),
        algo: "RING".into(),
        proto: "SIMPLE".into(),
        channel,
        peer: 1 - rank,
        direction,
        conn_index: channel,
        messages: sizes.len() as u64,
        bytes: sizes.iter().sum(),
        wire_bytes: sizes.iter().sum(),
        sizes: Some(sizes.to_vec()),
    }
}

pub(super) fn transfer_log() -> TransferLog {
    let of = |rank: i32| {
        let direction = if rank == 0 { Direction::Send } else { Direction::Recv };
        vec![
            transfer(rank, "AllReduce", 0, Direction::Send, &SLICES),
            transfer(rank, "AllReduce", 0, Direction::Recv, &SLICES),
            transfer(rank, "SendRecv", 1, direction, &PARTS),
        ]
    };
    TransferLog { ranks: (0..2).map(|rank| (member(rank), of(rank))).collect() }
}
