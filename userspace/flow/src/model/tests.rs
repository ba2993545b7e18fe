//! The model, fed with the calls that NCCL makes (src/proxy.cc, src/enqueue.cc of 2.27 and 2.21).

use super::{transfers::transfers, *};
use crate::{
    decode::{CommunicatorId, Connector, Event, Origin, ProxyPeerEvent, TaskInfo, Tree},
    made::calls::{APPLICATION, CALLBACK, Call, call, connector, p2p},
    schema::{BytesKind, Outcome, StackId, StackOf, Stage},
};
use nccl_library::nccl::{Direction, Pattern};

mod elsewhere;
mod measuring;

/// A session of the only process of its node.
#[derive(Default)]
struct Alone {
    session: Session,
    node: Node,
}

impl Alone {
    fn new(session: Session) -> Self {
        Self { session, node: Node::default() }
    }

    fn apply(&mut self, event: Event, out: &mut impl FnMut(FlowRecord)) {
        self.session.apply(event, &mut self.node, out);
    }

    fn finish(&mut self, lost: impl Fn(u32) -> u64, out: &mut impl FnMut(FlowRecord)) {
        self.session.finish(lost, &mut self.node, out);
    }

    fn counters(&self) -> ModelCounters {
        self.session.counters()
    }
}

/// Runs calls through a session, to its end.
fn run(calls: impl IntoIterator<Item = Call>) -> (Vec<FlowRecord>, ModelCounters) {
    let (mut session, mut out) = (Alone::default(), Vec::new());
    for call in calls {
        let Call { event, peers } = call;
        let (origin, op_pointer, plan_pass, nsteps) =
            (event.origin, event.op_pointer, event.plan_pass, event.op.nsteps);
        session.apply(Event::ProxyOp(Box::new(event)), &mut |record| out.push(record));
        for connector in peers {
            let peer = ProxyPeerEvent { origin, op_pointer, plan_pass, nsteps: Some(nsteps), connector };
            session.apply(Event::ProxyPeer(peer), &mut |record| out.push(record));
        }
    }
    session.finish(|_| 0, &mut |record| out.push(record));
    (out, session.counters())
}

fn seqs(records: &[FlowRecord]) -> Vec<u64> {
    records.iter().map(|record| record.seq).collect()
}

#[test]
fn channels_of_a_collective_share_a_number_and_the_next_collective_has_the_next() {
    let plan = |channel, launched| call(Pattern::RingTwice, channel, 0, launched).on_nvlink();
    let (records, counters) = run([plan(0, 0), plan(1, 0), plan(0, 1), plan(1, 1), plan(0, 2)]);
    assert_eq!(seqs(&records), [0, 0, 2, 2, 4]);
    assert!(
        records
            .iter()
            .all(|record| record.posted_at.is_none() && !record.needed && record.planned_at.is_some())
    );
    assert_eq!(counters, ModelCounters::default());
}

#[test]
fn coming_in_late_or_losing_records_does_not_shift_the_numbers() {
    let plan = |launched| call(Pattern::RingTwice, 0, 0, launched).on_nvlink();
    // NCCL had launched 41 before; 43 and 44 are lost.
    assert_eq!(seqs(&run([plan(41), plan(42), plan(45)]).0), [82, 84, 90]);
}

#[test]
fn collectives_of_a_group_count_from_their_plan_and_plans_that_wait_count_on() {
    // One plan of two collectives, and a second plan before the first is launched: NCCL's count still says 5.
    let plan = |op_count, task: u64| {
        let mut call = call(Pattern::RingTwice, 0, op_count, 5).on_nvlink();
        call.event.task = Some(TaskInfo { pointer: task, ..TaskInfo::default() });
        call
    };
    assert_eq!(seqs(&run([plan(0, 1), plan(2, 2), plan(0, 3)]).0), [10, 12, 14]);
}

/// Broadcasts of a group with collectives before them: seen while NCCL plans all of it, or each plan after
/// its launch.
#[test]
fn grouped_broadcasts_have_the_number_of_their_own_count() {
    let grouped = |channel, count: u64, launched| {
        let mut call = call(Pattern::Ring, channel, count << 1, launched).on_nvlink();
        call.event.op.slices = Some([3, 3]);
        call
    };
    let plan = |launched| call(Pattern::Ring, 0, 0, launched).on_nvlink();
    for [first, second] in [[4, 4], [5, 5]] {
        let calls = [plan(4), grouped(0, 4, first), grouped(1, 4, first), grouped(0, 5, second), plan(5)];
        assert_eq!(seqs(&run(calls).0), [8, 10, 10, 12, 14]);
    }
    // The tracer came in late, and no other collective was launched before.
    assert_eq!(seqs(&run([grouped(0, 9, 0), grouped(0, 10, 0)]).0), [18, 20]);
}

#[test]
fn interleaved_p2p_calls_keep_their_channels_apart() {
    // ncclGroup of two sends over two channels each: NCCL goes channel by channel inside a round.
    let calls = [
        p2p(Pattern::Recv, 3, 0),
        p2p(Pattern::Send, 2, 0),
        p2p(Pattern::Recv, 3, 1),
        p2p(Pattern::Send, 2, 1),
        p2p(Pattern::Send, 2, 0), // a channel comes again: the next call
    ];
    let (records, _) = run(calls.map(Call::on_nvlink));
    assert_eq!(seqs(&records), [1, 3, 1, 3, 5]);
    assert_eq!(records.iter().map(|record| record.p2p_part).collect::<Vec<_>>(), [0, 0, 1, 1, 0].map(Some));
    // A send to oneself is a copy on the GPU.
    assert!(run([p2p(Pattern::Send, 1, 0)]).0.is_empty());
}

#[test]
fn one_op_is_one_record_with_the_final_number() {
    let plan = |channel| call(Pattern::RingTwice, channel, 0, 9);
    let post = |channel| plan(channel).posted(40, APPLICATION);
    let (records, counters) = run([plan(0), plan(1), post(0), post(1)]);
    assert_eq!(records.len(), 2);
    for record in &records {
        assert!(record.planned_at.is_some() && record.posted_at.is_some() && record.needed);
        assert_eq!((record.op.op_count, record.seq, record.peers.len()), (40, 18, 2));
    }
    assert_eq!(counters, ModelCounters::default());
}

#[test]
fn posts_find_their_own_op_among_those_that_wait() {
    let small = call(Pattern::RingTwice, 0, 0, 0);
    let mut large = call(Pattern::RingTwice, 0, 2, 0);
    large.event.op.channel_size = Some(8 << 20);
    // The first post is lost: the second must not be taken for it.
    let (records, counters) = run([small.clone(), large.clone(), large.posted(2, APPLICATION)]);
    let of = |seq| records.iter().find(|record| record.seq == seq).unwrap();
    assert!(of(2).posted_at.is_some() && of(0).posted_at.is_none() && of(0).needed);
    assert_eq!((counters.unposted, counters.unplanned_posts), (1, 0));
}

#[test]
fn a_graph_replay_is_a_record_of_its_own_that_names_the_captured_op() {
    let plan = call(Pattern::RingTwice, 0, 0, 0);
    let replay = |op_count| plan.clone().posted(op_count, CALLBACK);
    let (records, counters) = run([plan.clone(), replay(0), replay(2), replay(4)]);
    assert_eq!(records.len(), 3);
    assert_eq!(
        records.iter().map(|record| record.captured_seq).collect::<Vec<_>>(),
        [None, Some(0), Some(0)]
    );
    assert_eq!(seqs(&records), [0, 2, 4]);
    assert_eq!(counters.unplanned_posts, 0);
    // A post from the thread that plans is no replay: its plan pass was lost.
    let (records, counters) =
        run([plan.clone(), plan.clone().posted(0, APPLICATION), plan.posted(2, APPLICATION)]);
    assert_eq!(records[1].captured_seq, None);
    assert_eq!(counters.unplanned_posts, 1);
}

/// A replay is posted by a thread of CUDA's, whose stack says nothing of the program.
#[test]
fn a_graph_replay_has_the_stack_of_what_was_captured() {
    let at = |call: &Call, stack: u64| {
        let mut call = call.clone();
        call.event.origin.stack = Some(stack);
        call
    };
    let plan = call(Pattern::RingTwice, 0, 0, 0);
    let callback = |op_count| at(&plan.clone().posted(op_count, CALLBACK), 9);
    let (records, _) = run([at(&plan, 7), callback(0), callback(2), callback(4)]);
    assert_eq!(records.iter().filter(|record| record.captured_seq.is_some()).count(), 2);
    let stacks: Vec<_> = records.iter().map(|record| record.stack).collect();
    assert_eq!(stacks, [Some((StackId(7), StackOf::Launch)); 3]);
}

/// NCCL does not count what a graph captured (src/plugin/profiler.cc, 2.26 and later), so our own count must
/// be right; and a replay's thread does nothing more when the next op is planned.
#[test]
fn what_is_planned_after_the_last_replay_has_the_number_after_it() {
    let captured = call(Pattern::RingTwice, 0, 0, 0);
    let replay = |op_count| captured.clone().posted(op_count, CALLBACK);
    let mut next = call(Pattern::RingTwice, 0, 0, 0).on_nvlink();
    next.event.op.nbytes = 4096;
    let (records, counters) = run([captured.clone(), replay(0), replay(2), next]);
    let numbers: Vec<(i64, u64)> = records.iter().map(|record| (record.op.nbytes, record.seq)).collect();
    assert_eq!(numbers, [(1 << 20, 0), (1 << 20, 2), (4096, 4)]);
    assert_eq!(counters, ModelCounters::default());
}

#[test]
fn a_post_pass_alone_is_recorded_as_such() {
    let post = |channel| call(Pattern::RingTwice, channel, 0, 12).posted(30, APPLICATION);
    let (records, counters) = run([post(0), post(1)]);
    assert_eq!(seqs(&records), [22, 22], "NCCL has counted the collective already");
    assert!(records.iter().all(|record| record.posted_at.is_some() && record.planned_at.is_none()));
    assert_eq!(counters.unplanned_posts, 2);
}

#[test]
fn communicators_do_not_mix_and_an_address_can_come_to_mean_another() {
    let plan = |pointer, hash, rank| {
        let mut call = call(Pattern::RingTwice, 0, 0, 0).on_nvlink();
        call.event.comm = CommunicatorId { pointer, hash: Some(hash), rank, n_ranks: 4, launched: Some(0) };
        call
    };
    let (records, _) = run([plan(1, 7, 0), plan(2, 7, 1), plan(1, 8, 0), plan(3, 7, 0)]);
    let identities: Vec<_> =
        records.iter().map(|record| (record.comm.hash, record.comm.rank, record.comm.instance)).collect();
    let expected = [(Some(7), 0, 0), (Some(7), 1, 0), (Some(8), 0, 0), (Some(7), 0, 1)];
    assert!(expected.iter().all(|identity| identities.contains(identity)), "{identities:?}");
    assert!(seqs(&records).iter().all(|seq| *seq == 0));
}

#[test]
fn what_is_no_flow_is_no_record_and_what_has_no_op_is_counted() {
    let profiler = call(Pattern::Profiler, 0, 0, 0);
    let plan = |channel| call(Pattern::RingTwice, channel, 0, 0).on_nvlink();
    // NCCL 2.26 to 2.30 call ncclProxySaveOp again for a profiler, between the channels of one op.
    assert_eq!(seqs(&run([plan(0), profiler.clone(), plan(1), profiler]).0), [0, 0]);

    let mut session = Alone::default();
    let origin = Origin { ts_ns: 1, tgid: 10, tid: APPLICATION, lost: 0, stack: None };
    let peer = peer_event(origin, connector(Direction::Send, 2));
    session.apply(Event::ProxyPeer(peer), &mut |_| ());
    assert_eq!(session.counters().orphan_peers, 1);
}

/// A tree's peers: up to the parent and from the children while reducing, the other way while broadcasting.
#[test]
fn tree_stages_follow_the_place_of_the_peer() {
    use Direction::{Recv, Send};
    let mut plan = call(Pattern::TreeUpDown, 0, 0, 0).on_nvlink();
    plan.event.tree = Tree { up: 0, down: [2, 3, -1] };
    plan.event.op.nsteps = 2;
    plan.event.op.slice_steps = 1;
    plan.event.op.chunk_steps = 1;
    plan.event.op.chunk_size = 300 << 10;
    // The eight calls of NCCL's TreeUpDown; -1 is nobody.
    let peers = [(Recv, 2), (Recv, 3), (Recv, -1), (Send, 0), (Send, 2), (Send, 3), (Send, -1), (Recv, 0)];
    plan.peers = peers.map(|(direction, peer)| Connector::unknown(direction, peer, 0)).to_vec();
    let (records, _) = run([plan]);
    let record = &records[0];
    assert_eq!(record.peers.len(), 6);
    let stages: Vec<_> = record
        .peers
        .iter()
        .map(|peer| transfers(record, peer).map(|transfer| transfer.stage).collect::<Vec<_>>())
        .collect();
    let (up, down) = (vec![Stage::TreeUp; 2], vec![Stage::TreeDown; 2]);
    assert_eq!(stages, [&up, &up, &up, &down, &down, &down].map(Clone::clone));
    let sizes: Vec<_> =
        transfers(record, &record.peers[0]).map(|transfer| (transfer.bytes, transfer.bytes_kind)).collect();
    assert_eq!(sizes, [(300 << 10, BytesKind::Exact), (212 << 10, BytesKind::Exact)]);
}

#[test]
fn sizes_are_capacities_where_the_planned_steps_do_not_fit_the_rule() {
    let mut plan = call(Pattern::RingTwice, 0, 0, 0).on_nvlink();
    plan.event.op.nsteps = 48;
    let (records, _) = run([plan]);
    let record = &records[0];
    assert!(transfers(record, &record.peers[0]).all(|transfer| transfer.bytes_kind == BytesKind::Capacity));
}

/// A target can claim anything; what it claims must not fill our disk or overflow.
#[test]
fn absurd_claims_are_cut_and_the_cut_is_said() {
    let mut plan = call(Pattern::RingTwice, 0, 0, u64::MAX).on_nvlink();
    plan.event.op.nsteps = u64::from(u32::MAX);
    plan.event.op.slice_steps = 1;
    plan.event.op.chunk_steps = u64::MAX;
    plan.event.op.chunk_size = u64::MAX;
    plan.event.op.channel_size = Some(u64::MAX);
    plan.event.op.nbytes = i64::MIN;
    plan.event.comm.n_ranks = i32::MAX;
    plan.event.ring.index = i32::MIN;
    let (records, _) = run([plan]);
    let record = &records[0];
    let laid_out = transfers(record, &record.peers[0]).count() as u64;
    assert_eq!(laid_out + transfers::Layout::new(record, &record.peers[0]).left_out(), u64::from(u32::MAX));
    assert!(laid_out <= 1 << 20);
}

/// Two threads take turns on one communicator (forward and backward pass). What one has planned is over when
/// the other plans.
#[test]
fn threads_that_share_a_communicator_do_not_shift_its_numbers() {
    let plan = |channel, launched, tid| {
        let mut call = call(Pattern::RingTwice, channel, 0, launched).on_nvlink();
        call.event.origin.tid = tid;
        call
    };
    let calls =
        [plan(0, 10, 1), plan(1, 10, 1), plan(0, 11, 2), plan(1, 11, 2), plan(0, 12, 1), plan(1, 12, 1)];
    assert_eq!(seqs(&run(calls).0), [20, 20, 22, 22, 24, 24]);
}

/// The post of an op is lost; those after it, of the same shape and from the same reused memory, still find
/// their own.
#[test]
fn a_lost_post_does_not_shift_the_joins_after_it() {
    let plan = |launched| call(Pattern::RingTwice, 0, 0, launched);
    let post = |launched, op_count| plan(launched).posted(op_count, APPLICATION);
    // NCCL's opCounts here are 100 and on; that of the third op, 104, is lost.
    let calls =
        [plan(0), post(0, 100), plan(1), post(1, 102), plan(2), plan(3), post(3, 106), plan(4), post(4, 108)];
    let (records, counters) = run(calls);
    let of = |seq: u64| records.iter().find(|record| record.seq == seq).unwrap();
    for (seq, op_count) in [(0, 100), (2, 102), (6, 106), (8, 108)] {
        assert!(of(seq).posted_at.is_some() && of(seq).op.op_count == op_count, "{seq}");
    }
    assert!(of(4).posted_at.is_none());
    assert_eq!((counters.unposted, counters.unplanned_posts), (1, 0));
}

/// Runs calls of which the first call's second peer was lost: what the process lost is counted in later
/// records.
fn run_with_a_loss(lost_after_first_peer: u64, at_the_end: u64) -> (Vec<FlowRecord>, ModelCounters) {
    let (mut session, mut out) = (Alone::default(), Vec::new());
    let mut take = |record| out.push(record);
    for (channel, lost) in [(0, 0), (1, lost_after_first_peer)] {
        let mut call = call(Pattern::RingTwice, channel, 0, 0).on_nvlink();
        call.event.origin.lost = lost;
        let (event, peers) = (call.event, call.peers);
        let origin = event.origin;
        session.apply(Event::ProxyOp(Box::new(event)), &mut take);
        let kept = if lost == 0 && lost_after_first_peer > 0 { 1 } else { 2 };
        for connector in peers.into_iter().take(kept) {
            session.apply(Event::ProxyPeer(peer_event(origin, connector)), &mut take);
        }
    }
    session.finish(|_| at_the_end, &mut take);
    (out, session.counters())
}

fn peer_event(origin: Origin, connector: Connector) -> ProxyPeerEvent {
    ProxyPeerEvent { origin, op_pointer: 0xaa, plan_pass: true, nsteps: Some(24), connector }
}

#[test]
fn an_op_during_which_records_were_lost_says_so() {
    let summary = |(records, _): (Vec<FlowRecord>, ModelCounters)| -> Vec<(usize, bool)> {
        records.iter().map(|record| (record.peers.len(), record.incomplete)).collect()
    };
    assert_eq!(summary(run_with_a_loss(0, 0)), [(2, false), (2, false)]);
    assert_eq!(summary(run_with_a_loss(1, 1)), [(1, true), (2, false)]);
    // After the last record that came: whatever was still open.
    assert_eq!(summary(run_with_a_loss(0, 5)), [(2, false), (2, true)]);
}

/// The peers of an op whose record is lost look like those of the op before: the same thread, the same
/// address.
#[test]
fn peers_after_a_loss_are_not_given_to_the_op_before_it() {
    let (mut session, mut out) = (Alone::default(), Vec::new());
    let mut take = |record| out.push(record);
    let first = call(Pattern::RingTwice, 0, 0, 0).on_nvlink();
    let origin = first.event.origin;
    session.apply(Event::ProxyOp(Box::new(first.event)), &mut take);
    for (direction, peer) in [(Direction::Recv, 0), (Direction::Send, 2)] {
        session
            .apply(Event::ProxyPeer(peer_event(origin, Connector::unknown(direction, peer, 0))), &mut take);
    }
    // The op of the next channel is lost, and its peers come.
    let later = Origin { lost: 1, ..origin };
    for (direction, peer) in [(Direction::Recv, 3), (Direction::Send, 3)] {
        session.apply(Event::ProxyPeer(peer_event(later, Connector::unknown(direction, peer, 0))), &mut take);
    }
    session.finish(|_| 1, &mut take);
    let peers: Vec<i32> =
        out.iter().flat_map(|record| &record.peers).map(|peer| peer.connector.peer).collect();
    assert_eq!(peers, [0, 2]);
    assert!(out.iter().all(|record| record.incomplete));
    assert_eq!(session.counters().orphan_peers, 2);
}

/// The tracer came between plan and post, or the plan was lost: the next op, which looks alike, is not what
/// was posted.
#[test]
fn a_post_without_its_plan_does_not_end_the_next_plan() {
    let mut next = call(Pattern::RingTwice, 0, 0, 1);
    next.event.origin.ts_ns = 50;
    let (records, counters) = run([call(Pattern::RingTwice, 0, 0, 0).posted(6, APPLICATION), next]);
    let summary: Vec<_> = records
        .iter()
        .map(|record| (record.planned_at.is_some(), record.posted_at.is_some(), record.peers.len()))
        .collect();
    assert_eq!(summary, [(false, true, 2), (true, false, 2)]);
    assert_eq!((counters.orphan_peers, counters.unplanned_posts), (0, 1));
}
