//! Ops that NCCL dropped because their network failed.

use super::made::{N, check, op, over_nvlink, rank, waiting};
use crate::{
    AbsentRank, Place, Work,
    rank_report::{ConnectionReport, OpReport, RankReport},
    verdict::{Kind, State, judge},
};
use nccl_library::nccl::Direction;

/// A rank of a ring over the network.
fn on_network(number: u32, ops: Vec<OpReport>) -> RankReport {
    let mut rank = rank(number, 5, ops);
    for (direction, peer) in [(Direction::Send, number + 1), (Direction::Recv, number + N - 1)] {
        rank.connections.push(ConnectionReport {
            channel: 0,
            direction,
            peer: peer % N,
            steps: 8,
            net_dev: None,
        });
    }
    rank
}

/// Rank 3 was killed: NCCL dropped rank 2's send to it, and rank 2's GPU cannot send on rank 1's data. Seen
/// on the bed with 2.27.5 under load.
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

/// A broadcast from rank 1 whose message to rank 2 was longer than that asked for: NCCL dropped rank 2's
/// receive and kept no error, and rank 1 is in the next op. Seen on the bed with 2.27.5, two ops exchanged on
/// rank 1.
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

/// Rank 2 was killed while rank 3 had one message of it to come: NCCL dropped both ops of rank 3, which has
/// launched one collective less than the others. Seen on the bed with 2.27.5 and Python ranks.
#[test]
fn a_rank_that_lost_its_ops_with_the_process_before_it_is_not_said_to_have_not_joined() {
    let mut ranks =
        [on_network(0, waiting(0).proxy.ops), on_network(1, waiting(1).proxy.ops), rank(3, 4, Vec::new())];
    ranks[0].absent = vec![AbsentRank { rank: 2, place: Place::Gone, pid: None, peer: None }];
    let verdict = judge(&ranks, &[]);
    check(&verdict, State::Stuck, &[2], &[0, 1, 3], "rank 3 has not joined: AllReduce 4 of 5 launched");
    assert_eq!(verdict.kind, Some(Kind::Gone));
    // One whose GPU runs nothing has launched nothing more, whoever is gone.
    ranks[2].gpu = over_nvlink(3, 4, Some(Work::Idle)).gpu;
    check(
        &judge(&ranks, &[]),
        State::Stuck,
        &[3],
        &[0, 1],
        "rank 3 has not joined: AllReduce 4 of 5 launched",
    );
}
