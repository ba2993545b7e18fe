//! Ranks that launched different collectives.

use super::made::{check, connected, rank, waiting};
use crate::{
    RankReport,
    verdict::{State, judge},
};
use nccl_library::nccl::Direction;

#[test]
fn a_different_order_is_told() {
    let mut ranks = [waiting(0), waiting(1), waiting(2), waiting(3)];
    ranks[1].proxy.ops.iter_mut().for_each(|op| op.coll = Some("Broadcast".to_owned()));
    let verdict = judge(&ranks, &[]);
    let told = "the order differs: op 4 is AllReduce on ranks 0, 2, 3, Broadcast on rank 1";
    check(&verdict, State::Stuck, &[1], &[0, 2, 3], told);
}

/// From 2.27 on a rank numbers only plans with an op for its proxy.
#[test]
fn ranks_that_number_their_ops_in_other_ways_are_not_compared() {
    let mut ranks = [waiting(0), waiting(1), waiting(2), waiting(3)];
    ranks[1].proxy.ops.iter_mut().for_each(|op| op.coll = Some("Broadcast".to_owned()));
    for rank in &mut ranks {
        rank.counters.coll_op_count = Some(5);
    }
    let differs = |ranks: &[RankReport]| {
        judge(ranks, &[]).evidence.iter().any(|sentence| sentence.starts_with("the order differs"))
    };
    assert!(differs(&ranks));
    ranks[1].counters.coll_op_count = Some(4);
    assert!(!differs(&ranks), "one of its launches had no op for the proxy");
    // Communicators whose counts are those of several say nothing of it.
    for rank in &mut ranks {
        rank.counters.coll_op_count_is_shared = true;
    }
    assert!(differs(&ranks));
}

/// Rank 1 has launched op 4, which its proxy has not begun: it is in the receive of op 3 still.
#[test]
fn steps_of_a_rank_that_is_in_an_older_op_are_not_compared() {
    let older = |mut rank: RankReport, count| {
        rank.proxy.ops.retain(|op| op.direction == Direction::Recv);
        rank.proxy.ops.iter_mut().for_each(|op| op.op_count = count);
        rank
    };
    let ranks = |count| {
        let first = connected(older(waiting(1), count), 124, 100);
        let [zero, two, three] = [0, 2, 3].map(|number| connected(waiting(number), 124, 124));
        [zero, first, two, three]
    };
    let says = |count| {
        let verdict = judge(&ranks(count), &[]);
        verdict.evidence.iter().any(|sentence| sentence.contains("earlier collectives differ"))
    };
    assert!(!says(3));
    assert!(says(4), "it is through with the send of op 4, and has sent less");
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
