//! Ops that a walked plan queued, and their final numbers.

use super::{
    peers::tests::{graphs, op},
    *,
};
use crate::decode::OpShape;

fn plan() -> PlanEvent {
    PlanEvent {
        origin: Origin { ts_ns: 1, tgid: 10, tid: 100, lost: 0 },
        comm: CommunicatorId { pointer: 0x1000, hash: Some(7), rank: 2, n_ranks: 4, launched: Some(0) },
        plan: 0x2000,
        in_callback: false,
        persistent: false,
        by_callback: false,
        channel_mask: 0b11,
        op_has: OpShape { algorithm: true, coll_api: true, channel_size: true },
        pat: None,
        work_bytes: 0,
        nodes: Vec::new(),
    }
}

/// A send to rank 3 on this channel.
fn send(channel: u32) -> QueuedOp {
    let op = ProxyOp { op_count: 3, channel, ..op(Pattern::Send, 3) };
    QueuedOp { address: 0x3000, op, task: None }
}

#[test]
fn an_op_of_a_channel_without_a_count_gets_no_number() {
    let (mut assembler, plan) = (PlanAssembler::default(), plan());
    let key = CommKey::new(plan.origin.tgid, &plan.comm);
    let topology = assembler.topologies.entry(key).or_default();
    topology.note_channel(0, graphs());
    topology.note_channel(1, graphs());
    let op_counts = Some(OpCounts { collectives: 9, p2p: vec![5] });
    let parts = Parts { op_counts, queued: vec![send(0), send(1)], ..Parts::default() };
    let posts = assembler.posts(&plan, &parts, key);
    let numbers: Vec<_> = posts.iter().map(|call| (call.event.op.channel, call.event.op.op_count)).collect();
    assert_eq!(numbers, [(0, 13)]);
}
