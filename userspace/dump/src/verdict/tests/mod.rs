//! Verdicts on made-up ranks.

mod broken_links;
mod disagreements;
pub(crate) mod made;

use self::made::{N, check, connected, lazy, op, over_nvlink, rank, waiting};
use super::*;
use crate::{
    activity::Activity,
    process_state::ProcessState,
    python::{PythonReport, PythonThread},
    rank_report::{OpReport, ProxyListState},
};
use flow::schema::PythonFrame;
use inspect::threads::Thread;
use nccl_library::nccl::Direction;

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
    // Rank 1 stalls in op 3. Rank 2 has begun op 3 and waits; its op 4 has input and room, but its kernel
    // runs later.
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
    // A batch of sends stands before a collective, which no number orders.
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

/// Rank 3 is still in the operation before, which it cannot end without rank 2.
#[test]
fn a_rank_that_is_behind_because_of_a_stopped_one_is_not_the_cause() {
    let mut ranks =
        [5, 5, 4, 4].into_iter().zip(0..).map(|(launched, number)| over_nvlink(number, launched, None));
    let mut ranks: [RankReport; 4] = std::array::from_fn(|_| ranks.next().unwrap());
    let both = judge(&ranks, &[]);
    assert_eq!((both.kind, &*both.culprits), (Some(Kind::NotJoined), &[2, 3][..]));
    ranks[2].process_state = ProcessState::Stopped;
    let verdict = judge(&ranks, &[]);
    assert_eq!(
        (verdict.kind, &*verdict.culprits, &*verdict.victims),
        (Some(Kind::Stopped), &[2][..], &[0, 1, 3][..])
    );
}

#[test]
fn a_rank_that_was_just_stopped_is_named_at_once_whatever_else_is_seen() {
    let said = "rank 1 is stopped: process 101 is in state T";
    let idle = [0, 1, 2, 3].map(|number| rank(number, 5, Vec::new()));
    let in_flight = [waiting(0), waiting(1), waiting(2), waiting(3)];
    for mut ranks in [idle, in_flight] {
        ranks[1].process_state = ProcessState::Stopped;
        check(&judge(&ranks, &[]), State::Stuck, &[1], &[0, 2, 3], said);
        // Another went on until a moment ago.
        ranks[2].motion.counters_moved = true;
        check(&judge(&ranks, &[]), State::Stuck, &[1], &[0, 2, 3], said);
        ranks[2].motion.steps_moved = true;
        check(&judge(&ranks, &[]), State::Stuck, &[1], &[0, 2, 3], said);
    }
    // One that ends holds nobody up of whom nothing is seen.
    let mut ending = [0, 1, 2, 3].map(|number| rank(number, 5, Vec::new()));
    ending[1].process_state = ProcessState::Dying;
    check(&judge(&ending, &[]), State::Unknown, &[], &[], "rank 1 is dying");
}

/// What a rank does while it dies is no progress, and one that is held is not late.
#[test]
fn a_process_that_is_frozen_or_dies_is_the_cause_and_not_one_that_goes_on_elsewhere() {
    let busy = Activity { seconds: 1.0, cpu_seconds: Some(0.9), ..Activity::default() };
    let process = ProcessReport { pid: 101, activity: Some(busy), ..ProcessReport::default() };
    for (state, kind, said) in [
        (ProcessState::Frozen, Kind::Stopped, "rank 1 is stopped: process 101 is held by the freezer"),
        (ProcessState::Dying, Kind::Dying, "rank 1 is dying: process 101 writes its core or exits"),
        (ProcessState::Stopped, Kind::Stopped, "rank 1 is stopped: process 101 is in state T"),
    ] {
        // With ops in flight, and over NVLink with a collective that it did not launch.
        let mut in_flight = [waiting(0), rank(1, 4, Vec::new()), waiting(2), waiting(3)];
        let mut unseen = [0, 1, 2, 3].map(|number| over_nvlink(number, 5 - u64::from(number == 1), None));
        for ranks in [&mut in_flight, &mut unseen] {
            ranks[1].process_state = state;
            let verdict = judge(ranks, std::slice::from_ref(&process));
            check(&verdict, State::Stuck, &[1], &[0, 2, 3], said);
            assert_eq!(verdict.kind, Some(kind), "{verdict:#?}");
            assert_eq!(verdict.evidence.iter().filter(|line| line.contains(said)).count(), 1, "{verdict:#?}");
        }
        // It went on until a moment ago.
        let mut moved = in_flight.clone();
        moved[2].motion.steps_moved = true;
        check(&judge(&moved, std::slice::from_ref(&process)), State::Stuck, &[1], &[0, 2, 3], said);
    }
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
fn what_is_said_of_a_culprit_has_the_line_of_its_main_thread() {
    let mut ranks: Vec<_> = (0..N).map(|number| rank(number, 5, Vec::new())).collect();
    ranks[1] = rank(1, 4, Vec::new());
    let process = |rank: u32, line: u32, is_main: bool| {
        let frame =
            PythonFrame { file: "/a/train.py".to_owned(), line: Some(line), ..PythonFrame::default() };
        let thread = PythonThread { is_main, frames: vec![frame], ..PythonThread::default() };
        let python = Some(PythonReport { threads: vec![thread], ..PythonReport::default() });
        ProcessReport { pid: 100 + rank, python, ..ProcessReport::default() }
    };
    let said = "rank 1 has not joined: AllReduce 4 of 5 launched";
    let of_all: Vec<_> = (0..N).map(|rank| process(rank, 50 + rank, true)).collect();
    let whole = format!("{said}; its main thread is at train.py:51 in ");
    let verdict = judge(&ranks, &of_all);
    check(&verdict, State::Stuck, &[1], &[0, 2, 3], &whole);
    assert_eq!(verdict.evidence.iter().filter(|sentence| sentence.contains("train.py")).count(), 1);
    // Another thread's line is not the main thread's, and nothing is known of a process that was not read.
    for processes in [vec![process(1, 51, false)], Vec::new()] {
        let verdict = judge(&ranks, &processes);
        assert!(verdict.evidence.contains(&said.to_owned()), "{verdict:#?}");
    }
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

/// Two nodes of two GPUs, which the ring visits one after the other: NVLink from 0 to 1 and from 2 to 3, the
/// network from 1 to 2 and from 3 to 0.
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
    // The error of a network about its other side points to the rank that is not there.
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
