//! Ops that a walked plan queued, and their final numbers.

use super::{
    peers::tests::{graphs, op},
    *,
};
use crate::{
    decode::{BroadcastWork, Event, OpShape},
    model::{FlowRecord, Node, Session},
};

fn plan() -> PlanEvent {
    PlanEvent {
        origin: Origin { ts_ns: 1, tgid: 10, tid: 100, lost: 0, stack: None },
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
        launch: None,
        one_sided: false,
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
    let posts = assembler.posts(&plan, &parts);
    let numbers: Vec<_> = posts.iter().map(|call| (call.event.op.channel, call.event.op.op_count)).collect();
    assert_eq!(numbers, [(0, 13)]);
}

/// The record of its connector was lost: that it has a proxy is known from the queue.
#[test]
fn a_queued_op_without_its_connector_is_one_op() {
    let plan = plan();
    let op_counts = OpCounts { collectives: 9, p2p: vec![5] };
    let parts =
        [PlanPart::Channel(0, graphs()), PlanPart::OpCounts(op_counts), PlanPart::ProxyOp(Box::new(send(0)))];
    let (mut session, mut node, mut out) = (Session::default(), Node::default(), Vec::new());
    let mut take = |record: FlowRecord| out.push(record);
    for part in parts {
        let event = PlanPartEvent { origin: plan.origin, part };
        session.apply(Event::PlanPart(event), &mut node, &mut take);
    }
    session.apply(Event::Plan(Box::new(plan)), &mut node, &mut take);
    session.finish(|_| 0, &mut node, &mut take);
    let ops: Vec<_> = out
        .iter()
        .map(|op| (op.op.op_count, op.planned_at.is_some(), op.posted_at.is_some(), op.needed, op.incomplete))
        .collect();
    assert_eq!(ops, [(13, true, true, true, true)]);
}

/// Works of grouped broadcasts without a proxy, as `ncclScheduleBcastTasksToPlan` makes them: on two
/// channels, one work for each of three broadcasts, by their depth in the channel's ring.
#[test]
fn grouped_broadcasts_without_a_proxy_are_one_op_of_the_launch() {
    let work = |ring_depth, bytes| Work {
        size: 48,
        what: WorkKind::Broadcast(Some(BroadcastWork { ring_depth, bytes })),
    };
    let works =
        [(0, 512), (1, 256), (3, 256), (0, 488), (2, 0), (3, 100)].map(|(depth, bytes)| work(depth, bytes));
    let parts = Parts { works: works.to_vec(), ..Parts::default() };
    let mut assembler = PlanAssembler::default();
    let calls = assembler.calls(&plan(), &parts, true);
    let [call] = calls.as_slice() else { panic!("{calls:?}") };
    let launch = call.event.op.launch.as_ref().unwrap();
    assert_eq!((launch.calls, launch.bytes), (Some(3), Some(512 + 256 + 256 + 488 + 100)));
    assert_eq!(
        (call.event.op.coll.as_deref(), call.event.op.pattern),
        (Some("AllGatherV"), Pattern::Grouped)
    );
    assert_eq!(assembler.counters.underived, 0);

    // The depths rise from one channel to the next: where the first ends cannot be told.
    let works = [work(0, 512), work(3, 100)].to_vec();
    let calls = assembler.calls(&plan(), &Parts { works, ..Parts::default() }, true);
    assert_eq!((calls.len(), assembler.counters.underived), (0, 2));
}
