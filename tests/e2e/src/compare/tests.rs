//! A small world that is right, and what each check says when one thing in it is wrong.

mod world;

use super::*;
use crate::direction::Direction;
use crate::tracer::{BytesKind, FlowStep, ProxyFlow, RankTrace, Trace};
use crate::truth::debug_log::DebugLog;
use crate::truth::plugin::{PluginTruth, RankTruth, State};
use crate::truth::transfer_log::TransferLog;
use world::{HASH, VECTOR, debug_log, member, plugin_op, plugin_truth, rank_truth, trace, transfer_log};

/// The world with one line of rank 0's files changed.
fn with_step(change: impl Fn(&mut FlowStep)) -> Trace {
    let mut trace = trace();
    change(&mut trace.ranks.get_mut(&member(0)).unwrap().steps[0]);
    trace
}

fn with_rank(rank: i32, change: impl FnOnce(&mut RankTrace)) -> Trace {
    let mut trace = trace();
    change(trace.ranks.get_mut(&member(rank)).unwrap());
    trace
}

#[track_caller]
fn assert_says(findings: &Findings, words: &str) {
    assert!(!findings.is_clean(), "nothing was found");
    assert!(
        findings.mismatches.iter().any(|mismatch| mismatch.contains(words)),
        "`{words}` not in: {findings}"
    );
}

fn sums(trace: &Trace) -> Findings {
    ring_all_reduce_sums(trace, 16, &|_, _| Some(VECTOR))
}

#[test]
fn a_right_world_passes_every_check() {
    let trace = trace();
    let compared = |findings: Findings| {
        findings.assert_clean("a right world");
        findings.compared
    };
    assert_eq!(compared(against_plugin(&trace, &plugin_truth())), 6, "three ops on each rank");
    assert_eq!(
        compared(topology(&trace, &debug_log(1))),
        4,
        "one op with a ring on each rank, and its peers"
    );
    assert_eq!(compared(symmetry(&trace)), 6);
    assert_eq!(compared(sums(&trace)), 3, "the op, and its two ranks");
    assert_eq!(compared(against_transfers(&trace, &transfer_log())), 6);
    assert_eq!(compared(identity(&trace)), 4 + 20 + 1, "ops, messages, and a collective on two ranks");
}

#[test]
fn a_check_without_anything_to_compare_has_not_passed() {
    let nothing = Trace::default();
    let all = [
        against_plugin(&nothing, &PluginTruth::default()),
        topology(&nothing, &DebugLog::default()),
        symmetry(&nothing),
        sums(&nothing),
        against_transfers(&nothing, &TransferLog::default()),
        identity(&nothing),
    ];
    assert!(all.iter().all(|findings| !findings.is_clean()));
}

mod plugin_check {
    use super::*;

    #[test]
    fn ops_that_are_missing_or_too_many_are_found() {
        let lost = with_rank(0, |rank| rank.steps.retain(|step| step.direction == Direction::Send));
        assert_says(
            &against_plugin(&lost, &plugin_truth()),
            "channel 0 RECV peer 1 (coll): no op recorded, 1 ran",
        );
        let mut truth = plugin_truth();
        truth.ranks.get_mut(&member(1)).unwrap().ops.pop();
        assert_says(&against_plugin(&trace(), &truth), "channel 1 RECV peer 0 (p2p): 1 ops recorded, 0 ran");
        truth.ranks.remove(&member(1));
        assert_says(&against_plugin(&trace(), &truth), "knows of no such rank");
        let mut trace = trace();
        trace.ranks.remove(&member(0));
        assert_says(&against_plugin(&trace, &plugin_truth()), "3 ops ran, no files");
    }

    #[test]
    fn other_counts_sizes_and_functions_are_found() {
        let short = with_rank(0, |rank| {
            rank.steps.remove(3);
        });
        assert_says(&against_plugin(&short, &plugin_truth()), "3 messages recorded, NCCL planned 4");
        let wrong = with_step(|step| step.bytes = 17);
        assert_says(&against_plugin(&wrong, &plugin_truth()), "message 0: 17 against 16");
        let wrong = with_rank(0, |rank| rank.flows[0].coll = Some("AllGather".into()));
        assert_says(&against_plugin(&wrong, &plugin_truth()), "recorded as AllGather, it was AllReduce");
    }

    #[test]
    fn what_is_only_planned_or_only_bounded_is_not_compared() {
        let planned = with_rank(0, |rank| rank.steps.iter_mut().for_each(|step| step.posted = false));
        assert_says(&against_plugin(&planned, &plugin_truth()), "0 ops recorded, 1 ran");
        let bounded = with_step(|step| {
            step.bytes = 1 << 20;
            step.bytes_kind = BytesKind::Capacity;
        });
        against_plugin(&bounded, &plugin_truth()).assert_clean("an upper bound");
    }

    #[test]
    fn old_versions_count_steps_and_sum_bytes() {
        let sum = |trans_size| State { state: 3, t: 0, trans_size: Some(trans_size), steps: None };
        let mut truth = plugin_truth();
        for rank in truth.ranks.values_mut() {
            for op in &mut rank.ops {
                op.api = 1;
                op.n_steps = if op.channel == 0 { 8 } else { 2 };
                op.states = vec![
                    sum(1000),
                    sum(1000
                        + op.steps
                            .iter()
                            .map(|step| step.trans_size_at(9).or(step.trans_size_at(11)).unwrap())
                            .sum::<u64>()),
                ];
            }
        }
        against_plugin(&trace(), &truth).assert_clean("v1");
        truth.ranks.get_mut(&member(0)).unwrap().ops[0].states[1] = sum(1063);
        assert_says(&against_plugin(&trace(), &truth), "64 bytes recorded, 63 transferred");
    }

    #[test]
    fn one_version_hides_p2p_ops_behind_the_first() {
        let mut truth = plugin_truth();
        for rank in truth.ranks.values_mut() {
            rank.api = 4;
            rank.ops.pop();
        }
        against_plugin(&trace(), &truth).assert_clean("hidden ops");
        truth.ranks.get_mut(&member(0)).unwrap().ops.push(plugin_op(11, 1, 1, Direction::Send, &[1, 2, 3]));
        assert_says(&against_plugin(&trace(), &truth), "0 ops recorded, 1 ran");
    }
}

#[test]
fn broadcasts_that_the_plugin_does_not_see_are_left_out() {
    let mut truth = plugin_truth();
    for rank in truth.ranks.values_mut() {
        rank.api = 6;
        rank.colls.clear();
        rank.ops.retain(|op| op.channel == 1);
    }
    assert_says(&against_plugin(&trace(), &truth), "1 ops recorded, 0 ran");
    let mut grouped = trace();
    for rank in grouped.ranks.values_mut() {
        rank.flows[0].coll = Some("AllGatherV".into());
    }
    against_plugin(&grouped, &truth).assert_clean("grouped broadcasts");
    let mut log = transfer_log();
    assert_says(&witnesses(&truth, &log), "no op ran, 1 moved");
    for transfer in log.ranks.values_mut().flatten().filter(|transfer| transfer.channel == 0) {
        transfer.func = "Broadcast".into();
    }
    witnesses(&truth, &log).assert_clean("grouped broadcasts");
}

#[test]
fn witnesses_that_disagree_are_found() {
    let mut truth = plugin_truth();
    assert_eq!(witnesses(&truth, &transfer_log()).compared, 6);
    truth.ranks.get_mut(&member(0)).unwrap().ops[0].n_steps = 5;
    assert_says(&witnesses(&truth, &transfer_log()), "op 0: 5 messages");
    let mut log = transfer_log();
    log.ranks.get_mut(&member(1)).unwrap().pop();
    assert_says(&witnesses(&plugin_truth(), &log), "1 ops ran, 0 moved");
}

#[test]
fn other_rings_trees_and_peers_are_found() {
    assert_says(&topology(&trace(), &debug_log(0)), "recorded between 1 and 1, built between 1 and 0");
    assert_says(&topology(&trace(), &DebugLog::default()), "not in the log");
    let elsewhere = with_rank(0, |rank| rank.flows[0].channel = 7);
    assert_says(&topology(&elsewhere, &debug_log(1)), "knows of no ring 7");
    let alone = with_rank(0, |rank| rank.steps.retain(|step| step.direction == Direction::Send));
    assert_says(&topology(&alone, &debug_log(1)), "recorded with peers");
    let grouped = |peer: i32| {
        with_rank(0, |rank| {
            rank.flows[0].pattern = "RING".into();
            rank.flows[0].coll = Some("AllGatherV".into());
            rank.steps.retain(|step| step.direction == Direction::Send);
            rank.steps[0].peer = peer;
        })
    };
    topology(&grouped(1), &debug_log(1)).assert_clean("a root of grouped broadcasts");
    assert_says(&topology(&grouped(0), &debug_log(1)), "recorded with peers");
    let tree = |pattern: &str| with_rank(0, |rank| rank.flows[0].pattern = pattern.into());
    topology(&tree("TREE_UP_DOWN"), &debug_log(1)).assert_clean("a tree");
    assert_says(&topology(&tree("TREE_UP"), &debug_log(1)), "built for Peers { send: {}, recv: {1} }");
    let chain = |root: i32| {
        with_rank(0, |rank| {
            rank.flows[0].pattern = "PIPELINE_FROM".into();
            rank.flows[0].root = root;
            rank.steps.retain(|step| step.direction == Direction::Send);
        })
    };
    topology(&chain(0), &debug_log(1)).assert_clean("the root sends");
    assert_says(&topology(&chain(1), &debug_log(1)), "built for Peers { send: {}, recv: {1} }");
}

#[test]
fn messages_that_do_not_arrive_are_found() {
    assert_says(&symmetry(&with_step(|step| step.bytes = 17)), "message 0: 17 against 16");
    let short = with_rank(1, |rank| {
        rank.steps.pop();
    });
    assert_says(&symmetry(&short), "2 messages here, 1 at rank 1");
    let late = with_rank(1, |rank| rank.steps.iter_mut().for_each(|step| step.seq += 2));
    assert_says(&symmetry(&late), "meets seq 2 of rank 1");
    let deaf = with_rank(1, |rank| rank.steps.retain(|step| step.pattern != "RECV"));
    assert_says(&symmetry(&deaf), "1 ops here, 0 at the peer");
    let mut alone = trace();
    alone.ranks.remove(&member(1));
    assert_says(&symmetry(&alone), "rank 1 has no files");
}

#[test]
fn sums_that_are_not_due_are_found() {
    assert_says(&sums(&with_step(|step| step.bytes = 17)), "129 bytes sent by all ranks, 128 are due");
    assert_says(&sums(&with_step(|step| step.bytes = 17)), "65 bytes sent by rank 0, 64 ± 0 are due");
    let shifted = with_rank(0, |rank| rank.steps[0].bytes = 0);
    let balanced = Trace {
        ranks: shifted
            .ranks
            .into_iter()
            .map(|(member, mut rank)| {
                rank.steps[0].bytes += if member.rank == 1 { 16 } else { 0 };
                (member, rank)
            })
            .collect(),
    };
    assert_says(&sums(&balanced), "48 bytes sent by rank 0");
    assert_says(&sums(&with_step(|step| step.bytes_kind = BytesKind::Capacity)), "without an exact size");
    let mut alone = trace();
    alone.ranks.remove(&member(1));
    assert_says(&sums(&alone), "1 of 2 ranks recorded");
}

#[test]
fn vector_sizes_come_from_the_calls_that_ran() {
    let rank = trace().ranks.remove(&member(0)).unwrap();
    let sizes = super::sums::vector_bytes(&member(0), &rank, &rank_truth(0)).unwrap();
    assert_eq!(sizes.get(&(HASH, 0)), Some(&VECTOR));
    let nothing = RankTruth::default();
    assert!(super::sums::vector_bytes(&member(0), &rank, &nothing).is_err());
}

#[test]
fn transfers_that_differ_are_found() {
    assert_says(
        &against_transfers(&with_step(|step| step.bytes = 17), &transfer_log()),
        "message 0: 17 against 16",
    );
    let mut unlisted = transfer_log();
    unlisted.ranks.values_mut().flatten().for_each(|transfer| transfer.sizes = None);
    against_transfers(&trace(), &unlisted).assert_clean("without lists");
    let wrong = with_step(|step| step.bytes = 17);
    assert_says(&against_transfers(&wrong, &unlisted), "65 bytes recorded, 64 moved");
    let bounded = with_step(|step| {
        step.bytes = 0;
        step.bytes_kind = BytesKind::Capacity;
    });
    assert_says(&against_transfers(&bounded, &transfer_log()), "room for 48 bytes, 64 moved");
    let mut log = transfer_log();
    log.ranks.get_mut(&member(1)).unwrap().pop();
    assert_says(&against_transfers(&trace(), &log), "1 ops recorded, 0 ran");
    log.ranks.remove(&member(0));
    assert_says(&against_transfers(&trace(), &log), "files, and no transfers");
}

#[test]
fn files_that_disagree_are_found() {
    assert_says(&identity(&with_step(|step| step.op_count = 9)), "opCount 9, its op has 0");
    assert_says(&identity(&with_step(|step| step.seq = 4)), "of no op");
    assert_says(&identity(&with_step(|step| step.protocol = "LL".into())), "its op has RING_TWICE SIMPLE");
    assert_says(&identity(&with_step(|step| step.step = 1)), "a message takes 2 steps");
    assert_says(&identity(&with_step(|step| step.step = 2)), "stands twice for peer 1");
    let twice = with_rank(0, |rank| rank.flows.push(rank.flows[0].clone()));
    assert_says(&identity(&twice), "stands twice");
    let odd = with_rank(0, |rank| rank.flows[0].pattern = "SEND".into());
    assert_says(&identity(&odd), "the number of coll for SEND");
    let root = with_rank(0, |rank| rank.flows[0].root = 1);
    assert_says(&identity(&root), "seq 0: rank 0 has");
    let unposted = with_rank(0, |rank| rank.flows[0].posted = false);
    assert_says(&identity(&unposted), "posted, and its op is not");
    let split = with_rank(0, |rank| {
        let other = ProxyFlow { channel: 1, count: Some(1), ..rank.flows[0].clone() };
        rank.flows.push(other);
    });
    assert_says(&identity(&split), "on channel 0");
}

#[test]
fn a_collective_that_a_rank_lacks_is_found_between_others_that_it_has() {
    let three = |rank: &mut RankTrace| {
        rank.steps.clear();
        rank.flows.truncate(1);
        for seq in [2, 4] {
            rank.flows.push(ProxyFlow { seq, op_count: seq, ..rank.flows[0].clone() });
        }
    };
    let without = |missing: u64| {
        let mut trace = trace();
        trace.ranks.values_mut().for_each(three);
        trace.ranks.get_mut(&member(1)).unwrap().flows.retain(|flow| flow.seq != missing);
        trace
    };
    assert_says(&identity(&without(2)), "seq 2: rank 0 has Some");
    identity(&without(0)).assert_clean("a rank that was attached to later");
    let mut fewer = without(99);
    fewer.ranks.get_mut(&member(1)).unwrap().flows[1].channel = 3;
    assert_says(&identity(&fewer), "seq 2");
}
