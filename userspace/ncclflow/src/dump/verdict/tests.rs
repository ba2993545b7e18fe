//! Verdicts on made-up ranks.

use super::*;
use crate::dump::{
    dump_report::ProcessState,
    rank_report::{ChannelReport, ConnectionReport, Motion, OpReport, ProxyListState, ProxyReport},
};
use crate::threads::Thread;
use nccl_library::nccl::Direction;

const N: u32 = 4;

fn op(direction: Direction, peer: u32, count: u64) -> OpReport {
    OpReport {
        op_count: count,
        p2p: false,
        coll: Some("AllReduce".to_owned()),
        pattern: Some("RING_TWICE".to_owned()),
        protocol: Some("SIMPLE".to_owned()),
        channel: 0,
        direction,
        peer: Some(peer),
        transport: Some("NET".to_owned()),
        begun: true,
        nsteps: 24,
        posted: 8,
        received: 0,
        flushed: None,
        transmitted: 0,
        done: 0,
        gpu: None,
        chunk_steps: 4,
        slice_steps: 2,
        still_seconds: 1.0,
    }
}

/// A rank of a ring over all, that stood still for a second and launched `launched` all-reduces.
fn rank(rank: u32, launched: u64, ops: Vec<OpReport>) -> RankReport {
    let at = |rank: u32| i32::try_from(rank % N).unwrap();
    let channel = ChannelReport {
        channel: 0,
        ring_prev: at(rank + N - 1),
        ring_next: at(rank + 1),
        tree_up: -1,
        tree_down: Vec::new(),
    };
    let mut report = RankReport {
        comm_hash: "0x1".to_owned(),
        n_ranks: N,
        rank,
        pid: 100 + rank,
        process_state: ProcessState::Running,
        channels: vec![channel],
        proxy: ProxyReport { state: ProxyListState::Read, carries_rings: Some(true), ops },
        motion: Motion { readings: 3, seconds: 1.0, steps_moved: false, counters_moved: false },
        ..RankReport::default()
    };
    report.counters.seq_number.insert("AllReduce".to_owned(), launched);
    report
}

/// A rank that sent what it could and waits for its predecessor.
fn waiting(number: u32) -> RankReport {
    let mut send = op(Direction::Send, (number + 1) % N, 4);
    (send.posted, send.transmitted, send.done) = (12, 4, 4);
    rank(number, 5, vec![op(Direction::Recv, (number + N - 1) % N, 4), send])
}

/// A rank whose GPU has what it needs and does nothing.
fn lazy(number: u32) -> RankReport {
    let mut receive = op(Direction::Recv, (number + N - 1) % N, 4);
    (receive.received, receive.transmitted) = (4, 4);
    rank(number, 5, vec![receive, op(Direction::Send, (number + 1) % N, 4)])
}

#[track_caller]
fn check(verdict: &Verdict, state: State, culprits: &[u32], victims: &[u32], said: &str) {
    assert_eq!(verdict.state, state, "{verdict:#?}");
    assert_eq!((&*verdict.culprits, &*verdict.victims), (culprits, victims), "{verdict:#?}");
    assert!(verdict.evidence.iter().any(|sentence| sentence.contains(said)), "{verdict:#?}");
}

#[test]
fn a_rank_that_has_not_joined_is_what_the_others_wait_for() {
    let ranks = [waiting(0), rank(1, 4, Vec::new()), waiting(2), waiting(3)];
    check(
        &judge(&ranks, &[]),
        State::Stuck,
        &[1],
        &[0, 2, 3],
        "rank 1 has not joined: AllReduce 4 of 5 launched",
    );
    // Before 2.26 there is only one number for all collectives.
    let old = ranks.map(|mut rank| {
        rank.counters.coll_op_count = rank.counters.seq_number.remove("AllReduce");
        rank
    });
    check(&judge(&old, &[]), State::Stuck, &[1], &[0, 2, 3], "4 of 5 collectives launched");
}

#[test]
fn a_gpu_that_has_its_input_and_does_nothing_is_the_cause() {
    let ranks = [waiting(0), waiting(1), lazy(2), waiting(3)];
    check(
        &judge(&ranks, &[]),
        State::Stuck,
        &[2],
        &[0, 1, 3],
        "its GPU has its input and has room for 8 steps",
    );
}

#[test]
fn an_op_that_is_queued_behind_another_does_not_make_its_rank_the_cause() {
    // Rank 1 stalls in op 3. Rank 2 has begun op 3 and waits; its op 4 has input and room, but its kernel runs later.
    let mut second = waiting(2);
    second.proxy.ops.iter_mut().for_each(|op| op.op_count = 3);
    second.proxy.ops.extend(lazy(2).proxy.ops);
    let mut first = lazy(1);
    first.proxy.ops.iter_mut().for_each(|op| op.op_count = 3);
    check(
        &judge(&[waiting(0), first, second, waiting(3)], &[]),
        State::Stuck,
        &[1],
        &[0, 2, 3],
        "rank 1 makes no progress",
    );
    // The same between a batch of sends and a collective, which no number orders.
    let mut second = waiting(2);
    second.proxy.ops.extend(lazy(2).proxy.ops.into_iter().map(|op| OpReport { p2p: true, ..op }));
    let ranks = [waiting(0), lazy(1), second, waiting(3)];
    check(&judge(&ranks, &[]), State::Stuck, &[1], &[0, 2, 3], "rank 1 makes no progress");
}

#[test]
fn a_stopped_process_is_the_cause_whatever_its_ops_look_like() {
    let mut ranks = [waiting(0), waiting(1), waiting(2), waiting(3)];
    ranks[3].process_state = ProcessState::Stopped;
    check(&judge(&ranks, &[]), State::Stuck, &[3], &[0, 1, 2], "process 103 is in state T");
}

#[test]
fn a_rank_that_nobody_read_is_named_as_such() {
    check(
        &judge(&[waiting(0), waiting(1), waiting(3)], &[]),
        State::Stuck,
        &[2],
        &[0, 1, 3],
        "rank 2 is waited for and was not read",
    );
}

#[test]
fn what_moves_is_healthy_even_if_one_rank_lags() {
    let mut ranks = [waiting(0), rank(1, 4, Vec::new()), waiting(2), waiting(3)];
    ranks[2].motion.steps_moved = true;
    check(&judge(&ranks, &[]), State::Healthy, &[], &[], "ops in flight of rank 2 moved");
    ranks[2].motion.steps_moved = false;
    ranks[0].motion.counters_moved = true;
    check(&judge(&ranks, &[]), State::Unknown, &[], &[], "rank 0 launched more while no op in flight moved");
}

#[test]
fn one_reading_is_no_proof() {
    let mut ranks = [waiting(0), rank(1, 4, Vec::new())];
    ranks[0].motion.readings = 1;
    check(&judge(&ranks, &[]), State::Unknown, &[], &[], "read only once");
    assert_eq!(judge(&[], &[]).state, State::Unknown);
}

#[test]
fn with_nothing_in_flight_the_job_waits_elsewhere() {
    let ranks: Vec<_> = (0..N).map(|number| rank(number, 5, Vec::new())).collect();
    check(&judge(&ranks, &[]), State::Healthy, &[], &[], "no NCCL op in flight on all 4 ranks");
    let over_nvlink: Vec<_> = ranks
        .into_iter()
        .map(|mut rank| {
            rank.proxy.carries_rings = Some(false);
            rank
        })
        .collect();
    check(&judge(&over_nvlink, &[]), State::Unknown, &[], &[], "over NVLink or shared memory");
}

#[test]
fn a_rank_inside_a_call_while_nothing_is_in_flight_waits_for_those_that_are_in_none() {
    let ranks: Vec<_> = (0..N).map(|number| rank(number, 5, Vec::new())).collect();
    let process = |rank: u32, call: Option<&str>| {
        let thread = Thread { tid: 900 + rank, nccl_api: call.map(str::to_owned), ..Thread::default() };
        ProcessReport { pid: 100 + rank, communicators: 1, threads: vec![thread], ..ProcessReport::default() }
    };
    let mut processes: Vec<_> = (0..N).map(|rank| process(rank, Some("ncclGroupEnd"))).collect();
    processes[2] = process(2, None);
    let said = "rank 1 is inside ncclGroupEnd (thread 901 of process 101)";
    check(&judge(&ranks, &processes), State::Stuck, &[2], &[0, 1, 3], said);
    // Of several communicators, or where one is made, nobody knows which is meant.
    processes[0].communicators = 2;
    check(&judge(&ranks, &processes), State::Unknown, &[], &[], "cannot tell, because which communicator");
    // To ask is not to wait.
    let asking: Vec<_> = (0..N).map(|rank| process(rank, Some("ncclCommGetAsyncError"))).collect();
    check(&judge(&ranks, &asking), State::Healthy, &[], &[], "the job waits elsewhere");
}

#[test]
fn over_nvlink_the_counters_tell_who_has_not_joined() {
    let ranks = [rank(0, 5, Vec::new()), rank(1, 3, Vec::new()), rank(2, 5, Vec::new())];
    check(&judge(&ranks, &[]), State::Stuck, &[1], &[0, 2], "rank 1 has not joined: AllReduce 3 of 5");
}

#[test]
fn a_circle_is_called_a_circle_and_names_nobody() {
    let ranks: Vec<_> = (0..N).map(waiting).collect();
    check(&judge(&ranks, &[]), State::Stuck, &[], &[0, 1, 2, 3], "in a circle");
}

#[test]
fn a_rank_whose_ops_could_not_be_read_is_not_said_to_have_none() {
    let mut ranks = [waiting(0), rank(1, 5, Vec::new()), waiting(2), waiting(3)];
    ranks[1].proxy.state = ProxyListState::Unreadable;
    check(&judge(&ranks, &[]), State::Unknown, &[1], &[0, 2, 3], "its ops in flight could not be read");
}

#[test]
fn a_rank_that_is_there_twice_leaves_the_verdict_open() {
    let ranks = [waiting(0), rank(1, 4, Vec::new()), waiting(0)];
    check(&judge(&ranks, &[]), State::Unknown, &[], &[], "a rank appears twice");
}

#[test]
fn unknown_peers_leave_the_verdict_open() {
    let ranks = [waiting(0), waiting(1), waiting(2), waiting(3)].map(|mut rank| {
        rank.proxy.ops.iter_mut().for_each(|op| op.peer = None);
        rank
    });
    check(&judge(&ranks, &[]), State::Unknown, &[], &[0, 1, 2, 3], "the peers of ops are not known");
}

#[test]
fn a_different_order_is_told() {
    let mut ranks = [waiting(0), waiting(1), waiting(2), waiting(3)];
    ranks[1].proxy.ops.iter_mut().for_each(|op| op.coll = Some("Broadcast".to_owned()));
    let verdict = judge(&ranks, &[]);
    let told = "the order differs: op 4 is AllReduce on ranks 0, 2, 3, Broadcast on rank 1";
    check(&verdict, State::Stuck, &[1], &[0, 2, 3], told);
}

#[test]
fn another_size_is_told_and_its_rank_named() {
    let mut ranks = [waiting(0), waiting(1), waiting(2), waiting(3)];
    ranks[2].proxy.ops.iter_mut().for_each(|op| op.nsteps = 48);
    let told =
        "the sizes differ: AllReduce, op 4, has on channel 0 24 steps on ranks 0, 1, 3, 48 steps on rank 2";
    check(&judge(&ranks, &[]), State::Stuck, &[2], &[0, 1, 3], told);
    // Communicators that count together number their ops differently.
    ranks[0].shares_resources = true;
    assert!(!judge(&ranks, &[]).evidence.iter().any(|sentence| sentence == told));
}

/// The connections of a rank in a ring over all, with the steps begun from and to its neighbours.
fn connected(mut rank: RankReport, from: u64, to: u64) -> RankReport {
    let end = |direction, peer, steps| ConnectionReport { channel: 0, direction, peer: peer % N, steps };
    rank.connections =
        vec![end(Direction::Recv, rank.rank + N - 1, from), end(Direction::Send, rank.rank + 1, to)];
    rank
}

#[test]
fn ops_that_are_over_are_compared_by_the_steps_of_both_ends() {
    // Rank 1 had a larger op and is the last that waits.
    let idle = |number, steps| connected(rank(number, 5, Vec::new()), steps, steps);
    let ranks = [idle(0, 100), connected(waiting(1), 124, 124), idle(2, 100), idle(3, 100)];
    check(
        &judge(&ranks, &[]),
        State::Stuck,
        &[1],
        &[],
        "sizes or order of earlier collectives differ on rank 1",
    );
    // All the same, and rank 2 only behind: nothing to compare.
    let behind = connected(rank(2, 4, Vec::new()), 76, 76);
    let ranks = [
        connected(waiting(0), 100, 100),
        connected(waiting(1), 100, 100),
        behind,
        connected(waiting(3), 100, 100),
    ];
    check(&judge(&ranks, &[]), State::Stuck, &[2], &[0, 1, 3], "rank 2 has not joined");
}

#[test]
fn a_collective_and_a_batch_that_wait_for_each_other_are_a_different_order() {
    let mut ranks = [waiting(0), waiting(1), waiting(2), waiting(3)];
    for op in &mut ranks[3].proxy.ops {
        op.p2p = true;
        op.pattern = Some(if op.direction == Direction::Send { "SEND" } else { "RECV" }.to_owned());
    }
    ranks[3].proxy.ops.truncate(1);
    let told = "the order differs: ranks 0, 1, 2 are in AllReduce, op 4, rank 3 is in sends and receives";
    check(&judge(&ranks, &[]), State::Stuck, &[3], &[0, 1, 2], told);
}

/// Two nodes of two GPUs, which the ring visits one after the other: NVLink from 0 to 1 and from 2 to 3, the network from 1 to
/// 2 and from 3 to 0.
fn over_nvlink_and_network() -> [RankReport; 4] {
    let mut ranks = [waiting(0), waiting(1), waiting(2), waiting(3)].map(|rank| connected(rank, 24, 24));
    for (number, rank) in (0..).zip(&mut ranks) {
        let seen = if number % 2 == 0 { Direction::Recv } else { Direction::Send };
        rank.proxy.ops.retain(|op| op.direction == seen);
        rank.connections.retain(|connection| connection.direction == seen);
        rank.proxy.carries_rings = None;
        rank.node = number / 2;
    }
    ranks
}

#[test]
fn a_sender_that_is_fed_over_nvlink_is_not_the_cause() {
    // Rank 0 has not joined; rank 1 has nothing to send because of that, and rank 2 nothing to receive.
    let mut ranks = over_nvlink_and_network();
    ranks[0].proxy.ops.clear();
    ranks[0].counters.seq_number.insert("AllReduce".to_owned(), 4);
    check(&judge(&ranks, &[]), State::Stuck, &[0], &[1, 2, 3], "rank 0 has not joined");
    // Rank 0 has joined and has no op on the host: which of the two GPUs stands cannot be told.
    ranks[0].counters.seq_number.insert("AllReduce".to_owned(), 5);
    let verdict = judge(&ranks, &[]);
    assert!(verdict.culprits.contains(&0), "{verdict:#?}");
    assert!(verdict.evidence.iter().any(|sentence| sentence.contains("only its GPU knows")), "{verdict:#?}");
}

#[test]
fn a_receive_that_vanished_before_its_data_were_sent_on_points_to_its_sender() {
    // NCCL takes an op whose network failed out of the list, in some versions without keeping the error.
    let mut ranks = [waiting(0), waiting(1), waiting(3)].map(|rank| connected(rank, 24, 24));
    ranks[2].proxy.ops.remove(0);
    ranks[1].proxy.ops.remove(1);
    check(&judge(&ranks, &[]), State::Stuck, &[2], &[0, 1, 3], "inferred that its connection broke");
}

#[test]
fn data_that_the_network_does_not_take_point_to_the_receiver() {
    let mut send = op(Direction::Send, 1, 2);
    (send.p2p, send.pattern, send.chunk_steps, send.slice_steps) = (true, Some("SEND".to_owned()), 1, 1);
    (send.posted, send.transmitted, send.done, send.gpu) = (8, 0, 0, Some(8));
    let ranks =
        [rank(0, 0, vec![send]), rank(1, 0, Vec::new()), rank(2, 0, Vec::new()), rank(3, 0, Vec::new())];
    check(&judge(&ranks, &[]), State::Stuck, &[1], &[0], "rank 1 is waited for and has no op in flight");
}

#[test]
fn a_leaf_of_a_tree_that_does_not_send_is_the_cause_though_it_waits_for_the_result() {
    let tree = |mut rank: RankReport, up: i32, down: &[i32]| {
        rank.channels[0].tree_up = up;
        rank.channels[0].tree_down = down.to_vec();
        for op in &mut rank.proxy.ops {
            op.pattern = Some("TREE_UP_DOWN".to_owned());
            (op.chunk_steps, op.slice_steps, op.nsteps) = (1, 1, 4);
            op.posted = 4;
        }
        rank
    };
    let (send, receive) = (|to| op(Direction::Send, to, 4), |from| op(Direction::Recv, from, 4));
    let mut middle =
        tree(rank(1, 5, vec![receive(2), receive(3), send(0), receive(0), send(2), send(3)]), 0, &[2, 3]);
    // Rank 3 has sent its part, rank 2 has not.
    (middle.proxy.ops[1].received, middle.proxy.ops[1].transmitted) = (4, 4);
    let mut sent = tree(rank(3, 5, vec![send(1), receive(1)]), 1, &[]);
    (sent.proxy.ops[0].transmitted, sent.proxy.ops[0].done) = (4, 4);
    let ranks = [
        tree(rank(0, 5, vec![receive(1), send(1)]), -1, &[1]),
        middle,
        tree(rank(2, 5, vec![send(1), receive(1)]), 1, &[]),
        sent,
    ];
    check(&judge(&ranks, &[]), State::Stuck, &[2], &[0, 1, 3], "rank 2 makes no progress: SEND to 1");
}

#[test]
fn a_failed_rank_and_a_communicator_in_the_making_are_told() {
    let mut ranks = [waiting(0), rank(1, 5, Vec::new()), waiting(2), waiting(3)];
    ranks[1].status.async_result = Some("ncclRemoteError".to_owned());
    check(&judge(&ranks, &[]), State::Stuck, &[1], &[0, 2, 3], "rank 1 has failed: ncclRemoteError");
    // What a network says of its other side points to the rank that is not there.
    let dead = ProcessReport { pid: 102, state: ProcessState::Exited, ..ProcessReport::default() };
    let mut left = [waiting(0), waiting(1), waiting(3)];
    left[1].status.proxy_result = Some("ncclRemoteError".to_owned());
    left[2].status.proxy_result = Some("ncclSystemError".to_owned());
    check(
        &judge(&left, &[dead]),
        State::Stuck,
        &[2],
        &[0, 1, 3],
        "process 102 has exited, and rank 2 is the only one",
    );
    left[0].status.async_result = Some("ncclInternalError".to_owned());
    check(&judge(&left, &[]), State::Stuck, &[0], &[1, 3], "rank 0 has failed: ncclInternalError");
    ranks[0].status.init = Some("ncclInProgress".to_owned());
    check(&judge(&ranks, &[]), State::Unknown, &[], &[], "rank 0 is still setting the communicator up");
}

#[test]
fn a_verdict_and_its_ranks_survive_json() {
    let ranks = [waiting(0), lazy(2)];
    let text = serde_json::to_string(&ranks).unwrap();
    let again: Vec<RankReport> = serde_json::from_str(&text).unwrap();
    assert_eq!(again, ranks);
    assert_eq!(serde_json::to_value(judge(&again, &[])).unwrap()["state"], "stuck");
}

/// A rank of a ring over the network.
fn on_network(number: u32, ops: Vec<OpReport>) -> RankReport {
    let mut rank = rank(number, 5, ops);
    for (direction, peer) in [(Direction::Send, number + 1), (Direction::Recv, number + N - 1)] {
        rank.connections.push(ConnectionReport { channel: 0, direction, peer: peer % N, steps: 8 });
    }
    rank
}

/// Rank 3 was killed: NCCL dropped rank 2's send to it, and rank 2's GPU cannot send on what comes from rank 1. Seen on the bed with
/// 2.27.5 under load.
#[test]
fn a_send_that_nccl_dropped_is_waited_for_where_it_went() {
    let taken = |count| OpReport {
        received: 8,
        transmitted: 8,
        done: count,
        gpu: Some(count),
        ..op(Direction::Recv, 1, 4)
    };
    let queued = || op(Direction::Send, 3, 5);
    let mut fed_by_nobody = op(Direction::Send, 1, 4);
    (fed_by_nobody.posted, fed_by_nobody.transmitted, fed_by_nobody.done) = (12, 4, 4);
    let first = || on_network(0, vec![fed_by_nobody.clone()]);
    let mut second = waiting(1);
    second.connections = on_network(1, Vec::new()).connections;
    let ranks = [first(), second.clone(), on_network(2, vec![taken(2), queued()])];
    let said = "its GPU has 6 steps to send on, and the send is no longer in flight";
    check(&judge(&ranks, &[]), State::Stuck, &[3], &[0, 1, 2], said);

    // With all ranks there, it is the link between the two.
    let ranks = [waiting(0), second.clone(), on_network(2, vec![taken(2), queued()]), waiting(3)];
    check(&judge(&ranks, &[]), State::Stuck, &[2, 3], &[0, 1], "the link from rank 2 to rank 3 is down");

    // In its last chunk a rank has sent everything: its GPU stands by itself.
    let mut last = taken(20);
    (last.posted, last.received, last.transmitted) = (24, 24, 24);
    let ranks = [first(), second, on_network(2, vec![last, queued()])];
    check(&judge(&ranks, &[]), State::Stuck, &[2, 3], &[0, 1], "its GPU does not take 4 steps that came in");
}

/// A broadcast from rank 1 whose message to rank 2 was longer than that asked for: NCCL dropped rank 2's receive and kept no error,
/// and rank 1 is in the next op. Seen on the bed with 2.27.5, two ops exchanged on rank 1.
#[test]
fn a_receive_that_a_pipeline_lost_is_a_link_that_is_down() {
    let pipeline = |direction, peer| OpReport {
        coll: Some("Broadcast".to_owned()),
        pattern: Some("PIPELINE_FROM".to_owned()),
        ..op(direction, peer, 4)
    };
    let next_op = |direction, peer| op(direction, peer, 5);
    let connect = on_network;
    let mut from_0 = next_op(Direction::Send, 2);
    (from_0.posted, from_0.transmitted, from_0.done) = (12, 4, 4);
    let ranks = [
        connect(0, vec![pipeline(Direction::Recv, 3), next_op(Direction::Send, 1)]),
        connect(1, vec![next_op(Direction::Recv, 0), from_0]),
        connect(2, vec![pipeline(Direction::Send, 3)]),
        connect(3, vec![pipeline(Direction::Recv, 2), pipeline(Direction::Send, 0)]),
    ];
    let said = "the link from rank 1 to rank 2 is down";
    check(&judge(&ranks, &[]), State::Stuck, &[1, 2], &[0, 3], said);

    // Where rank 2 begins the pipeline, it has no receive to lose: it does not go on by itself.
    let begins_at_2 = [
        connect(0, vec![pipeline(Direction::Recv, 3), pipeline(Direction::Send, 1)]),
        connect(1, vec![pipeline(Direction::Recv, 0)]),
        connect(2, vec![pipeline(Direction::Send, 3)]),
        connect(3, vec![pipeline(Direction::Recv, 2), pipeline(Direction::Send, 0)]),
    ];
    check(&judge(&begins_at_2, &[]), State::Stuck, &[2], &[0, 1, 3], "rank 2 makes no progress");
}
