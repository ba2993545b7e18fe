//! Calls that all ranks of a communicator must make, as `ncclCommSplit`: those that have made one wait in it
//! for those that have not.
//!
//! Which communicator a thread's call is for was in a register that has been used again since. If the process
//! has one communicator, it is that one; and some calls leave a mark in theirs ([`is_marked`]). Else it
//! follows from who is in the call: a communicator all of whose ranks are in it would be done, so it is the
//! smallest that has all these processes, and others.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{BE, Case, Kind, MAX_SENTENCES, Verdict, disagreement::minority, subject};
use crate::{CommunicatorReport, ProcessId, ProcessReport, RankReport};

/// Calls that do not end before all ranks have made them. (src/init.cc, src/dev_runtime.cc.
/// `ncclCommFinalize`, `ncclCommDestroy` and `ncclCommAbort` wait for the rank's own work, and, from 2.31 on,
/// for the ranks of the same node.)
const COMMON: [&str; 11] = [
    "ncclCommSplit",
    "ncclCommShrink",
    "ncclCommGrow",
    "ncclCommFinalize",
    "ncclCommDestroy",
    "ncclCommAbort",
    "ncclCommRevoke",
    "ncclCommWindowRegister",
    "ncclCommWindowDeregister",
    "ncclDevCommCreate",
    "ncclDevCommDestroy",
];

/// Calls of them that end a communicator: as far as they wait for other ranks, for those of the same node.
const ENDING: [&str; 3] = ["ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort"];

/// A call in which ranks of a communicator wait for its others.
#[derive(Clone, Debug)]
pub(super) struct CommonCall {
    pub(super) function: String,
    /// Ranks that are in the call, with their threads.
    inside: BTreeMap<u32, u32>,
    /// Ranks that are in another such call, which is for no other communicator.
    elsewhere: BTreeMap<u32, String>,
    /// The communicator follows from who is in the call.
    pub(super) is_inferred: bool,
}

/// Returns the call of a process that all ranks of some communicator must make, with its thread.
fn of_process(process: &ProcessReport) -> Option<(u32, &str)> {
    process.calls().find(|(_, call)| COMMON.contains(call))
}

/// Describes such a call that a process is in, or one that makes a communicator: `ncclCommSplit (thread
/// 812)`.
pub(super) fn described(process: &ProcessReport) -> Option<String> {
    let makes_one = || process.calls().find(|(_, call)| call.starts_with("ncclCommInit"));
    of_process(process).or_else(makes_one).map(|(thread, call)| format!("{call} (thread {thread})"))
}

/// Tells whether NCCL's own state says that the rank has begun this call for its communicator. Where it does
/// not, the call may be for it all the same.
fn is_marked(rank: &RankReport, function: &str) -> bool {
    let status = &rank.status;
    let mark = match function {
        "ncclCommFinalize" => status.finalize_called,
        "ncclCommDestroy" => status.destroying,
        "ncclCommAbort" => status.abort,
        "ncclCommRevoke" => status.revoked,
        // A call that joins a group leaves it when it is done (src/dev_runtime.cc).
        _ => rank.pending.as_ref().and_then(|pending| pending.in_group),
    };
    mark == Some(true)
}

/// Finds the calls that ranks wait in, by communicator: at most one of each.
pub(super) fn find(
    communicators: &[CommunicatorReport],
    processes: &[ProcessReport],
) -> BTreeMap<usize, CommonCall> {
    let mut by_function: BTreeMap<&str, BTreeMap<ProcessId<'_>, u32>> = BTreeMap::new();
    for process in processes {
        if let Some((thread, call)) = of_process(process) {
            by_function.entry(call).or_default().insert(process.id(), thread);
        }
    }
    let mut found: BTreeMap<usize, CommonCall> = BTreeMap::new();
    let mut left: BTreeMap<ProcessId<'_>, &str> = BTreeMap::new();
    for (function, mut callers) in by_function {
        let mut marked: BTreeMap<ProcessId<'_>, BTreeSet<usize>> = BTreeMap::new();
        for (at, rank) in
            (0..).zip(communicators).flat_map(|(at, one)| one.ranks.iter().map(move |rank| (at, rank)))
        {
            if is_marked(rank, function) {
                marked.entry(rank.process()).or_default().insert(at);
            }
        }
        loop {
            let inside = |at: usize, communicator: &CommunicatorReport| -> BTreeMap<u32, u32> {
                let thread = |rank: &RankReport| {
                    let may_be = marked.get(&rank.process()).is_none_or(|marked| marked.contains(&at));
                    Some((rank.rank, *callers.get(&rank.process()).filter(|_| may_be)?))
                };
                communicator.ranks.iter().filter_map(thread).collect()
            };
            let candidates = communicators.iter().enumerate().filter(|(at, _)| !found.contains_key(at));
            let best = candidates
                .map(|(at, one)| (at, one, inside(at, one)))
                .filter(|(_, one, inside)| !inside.is_empty() && inside.len() < one.n_ranks as usize)
                .max_by_key(|(_, one, inside)| (inside.len(), Reverse(one.n_ranks)));
            let Some((at, communicator, inside)) = best else { break };
            let ids = communicator.ranks.iter().filter(|rank| inside.contains_key(&rank.rank));
            let ids: BTreeSet<ProcessId<'_>> = ids.map(RankReport::process).collect();
            callers.retain(|id, _| !ids.contains(id));
            let is_known = |process: &ProcessReport| {
                process.communicators <= 1
                    || marked.get(&process.id()).is_some_and(|marked| marked.len() == 1)
            };
            let is_inferred = processes.iter().any(|one| ids.contains(&one.id()) && !is_known(one));
            let function = function.to_owned();
            found.insert(at, CommonCall { function, inside, elsewhere: BTreeMap::new(), is_inferred });
        }
        left.extend(callers.into_keys().map(|id| (id, function)));
    }
    for (at, call) in &mut found {
        let calls = |rank: &RankReport| Some((rank.rank, (*left.get(&rank.process())?).to_owned()));
        call.elsewhere = communicators[*at].ranks.iter().filter_map(calls).collect();
    }
    found
}

/// Judges a communicator of which some ranks are in a common call, and others are not.
pub(super) fn common_call(case: &Case<'_>) -> Option<Verdict> {
    let call = case.common_call?;
    let function = &call.function;
    let is_in_another = |rank: &u32| call.elsewhere.contains_key(rank);
    let outside = case.ranks_where(|rank| !call.inside.contains_key(&rank.rank));
    let (others, mut outside): (Vec<u32>, Vec<u32>) = outside.into_iter().partition(is_in_another);
    let is_end = ENDING.contains(&&**function);
    if is_end {
        let node = |rank: &u32| case.ranks.get(rank).map(|rank| (rank.host.as_str(), rank.node));
        let waits_there: BTreeSet<_> = call.inside.keys().map(node).collect();
        if outside.iter().any(|rank| waits_there.contains(&node(rank))) {
            outside.retain(|rank| waits_there.contains(&node(rank)));
        }
    }
    let mut evidence =
        vec![format!("no NCCL op in flight, and nothing was launched for {:.1} s", case.seconds)];
    let inferred = if call.is_inferred { " (inferred: who is in it is of this communicator)" } else { "" };
    evidence.push(format!(
        "{} in {function}, which all ranks of the communicator must call{inferred}",
        subject(call.inside.keys(), BE)
    ));
    let mut sides: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for (rank, other) in &call.elsewhere {
        sides.entry(other).or_default().insert(*rank);
    }
    evidence.extend(sides.iter().map(|(other, ranks)| format!("{} in {other} instead", subject(ranks, BE))));
    for rank in outside.iter().take(MAX_SENTENCES) {
        let calls_it = case.ranks.get(rank).and_then(|rank| of_process(case.process_of(rank)?));
        let for_it =
            if calls_it.is_some_and(|(_, call)| call == function) { " for this communicator" } else { "" };
        evidence.push(format!("rank {rank} has not called {function}{for_it}"));
    }
    if outside.is_empty() && !others.is_empty() && case.n_missing() == 0 {
        sides.insert(function, call.inside.keys().copied().collect());
        return Some(case.stuck(Kind::OtherOperation, minority(&sides), evidence));
    }
    let vanished = case.vanished();
    // One that has left has made a call that ends the communicator.
    let kind = vanished.first().map(|(_, kind)| *kind).filter(|kind| *kind == Kind::Gone || !is_end);
    if let Some(kind) = kind
        && outside.is_empty()
        && case.n_missing() == vanished.len()
    {
        let culprits = vanished.into_iter().filter(|(_, other)| *other == kind).map(|(rank, _)| rank);
        let culprits: Vec<u32> = culprits.collect();
        evidence.extend(culprits.iter().take(MAX_SENTENCES).filter_map(|rank| case.absent_sentence(*rank)));
        return Some(case.stuck(kind, culprits, evidence));
    }
    if outside.is_empty() || case.n_missing() > vanished.len() {
        evidence.extend(case.absent_sentences());
        evidence.extend(case.missing_sentence());
        evidence.push("cannot tell whether ranks that were not read have called it".to_owned());
        return Some(Verdict { evidence, ..Verdict::default() });
    }
    let victims = call.inside.keys().copied().chain(others).collect::<BTreeSet<u32>>();
    Some(Verdict::stuck(Kind::CallNotMade, outside, victims, evidence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AbsentRank, LibraryReport, Place,
        activity::Activity,
        verdict::{
            State, judge_all,
            tests::made::{check, communicator, in_call as process},
        },
    };

    /// Ranks 0 to 2 of the world are in `dist.new_group`, with groups of tensor and pipeline parallelism.
    #[test]
    fn a_split_that_one_rank_does_not_join_is_of_the_world_and_not_of_a_group_that_is_in_it() {
        let split = Some("ncclCommSplit");
        let processes =
            [process(10, 3, split), process(11, 3, split), process(12, 3, split), process(13, 3, None)];
        let mut all = [
            communicator("tp0", &[10, 11]),
            communicator("tp1", &[12, 13]),
            communicator("pp0", &[10, 12]),
            communicator("pp1", &[11, 13]),
            communicator("world", &[10, 11, 12, 13]),
        ];
        judge_all(&mut all, &processes);
        let world = &all[4].verdict;
        check(world, State::Stuck, &[3], &[0, 1, 2], "ranks 0, 1, 2 are in ncclCommSplit, which all ranks");
        check(world, State::Stuck, &[3], &[0, 1, 2], "rank 3 has not called ncclCommSplit");
        assert_eq!(world.kind, Some(Kind::CallNotMade));
        for other in &all[..4] {
            assert_ne!(other.verdict.state, State::Stuck, "{other:#?}");
        }
    }

    #[test]
    fn groups_that_each_lack_one_are_told_apart() {
        let register = Some("ncclCommWindowRegister");
        let processes =
            [process(10, 1, register), process(11, 1, None), process(12, 1, register), process(13, 1, None)];
        let mut all = [communicator("a", &[10, 11]), communicator("b", &[13, 12])];
        judge_all(&mut all, &processes);
        check(&all[0].verdict, State::Stuck, &[1], &[0], "rank 1 has not called ncclCommWindowRegister");
        check(&all[1].verdict, State::Stuck, &[0], &[1], "rank 0 has not called ncclCommWindowRegister");
        assert!(all.iter().all(|one| !one.verdict.evidence.iter().any(|line| line.contains("inferred"))));
    }

    #[test]
    fn the_end_of_a_communicator_waits_for_the_ranks_of_its_node() {
        let judged = |call| {
            let processes = [
                process(10, 1, Some(call)),
                process(11, 1, None),
                process(12, 1, None),
                process(13, 1, None),
            ];
            let mut all = [communicator("a", &[10, 11, 12, 13])];
            for rank in &mut all[0].ranks[2..] {
                rank.node = 1;
            }
            judge_all(&mut all, &processes);
            all[0].verdict.culprits.clone()
        };
        assert_eq!(judged("ncclCommFinalize"), [1]);
        assert_eq!(judged("ncclCommSplit"), [1, 2, 3]);
    }

    /// vllm#39846: the process of one rank is gone, and the others end the communicator.
    #[test]
    fn a_rank_that_is_gone_holds_up_a_call_and_one_that_has_left_only_what_is_no_end() {
        let judged = |call, place, pid| {
            let processes: Vec<_> = [10, 11].map(|pid| process(pid, 1, Some(call))).into();
            // The third was read, and has no communicator.
            let scan = Some(inspect::memory::ScanReport { complete: true, ..Default::default() });
            let libraries = vec![LibraryReport::default()];
            let third = ProcessReport { libraries, scan, ..process(12, 0, None) };
            let mut all = [communicator("a", &[10, 11, 12])];
            all[0].ranks.truncate(2);
            all[0].ranks[0].absent = vec![AbsentRank { rank: 2, place, pid, peer: None }];
            judge_all(&mut all, &[processes, vec![third]].concat());
            let verdict = &all[0].verdict;
            (verdict.state, verdict.kind, verdict.culprits.clone())
        };
        for call in ["ncclCommDestroy", "ncclCommSplit"] {
            assert_eq!(judged(call, Place::Gone, None), (State::Stuck, Some(Kind::Gone), vec![2]));
        }
        assert_eq!(judged("ncclCommSplit", Place::Here, Some(12)), (State::Stuck, Some(Kind::Left), vec![2]));
        assert_eq!(judged("ncclCommDestroy", Place::Here, Some(12)).0, State::Unknown);
    }

    #[test]
    fn two_calls_of_one_communicator_accuse_those_that_differ_from_most() {
        let calls = [Some("ncclCommSplit"), Some("ncclCommFinalize"), Some("ncclCommSplit")];
        let processes: Vec<_> = (10..).zip(calls).map(|(pid, call)| process(pid, 1, call)).collect();
        let mut all = [communicator("a", &[10, 11, 12])];
        judge_all(&mut all, &processes);
        check(&all[0].verdict, State::Stuck, &[1], &[0, 2], "ranks 0, 2 are in ncclCommSplit instead");
        assert_eq!(all[0].verdict.kind, Some(Kind::OtherOperation));
        // One that is in none of them holds up both.
        let mut all = [communicator("a", &[10, 11, 12, 13])];
        judge_all(&mut all, &[processes, vec![process(13, 1, None)]].concat());
        check(&all[0].verdict, State::Stuck, &[3], &[0, 1, 2], "rank 3 has not called ncclCommFinalize");
    }

    #[test]
    fn one_that_goes_on_elsewhere_is_waited_for_and_one_that_was_not_read_is_not_accused() {
        let finalize = Some("ncclCommFinalize");
        let busy = Activity { seconds: 1.0, cpu_seconds: Some(0.9), ..Activity::default() };
        let late = ProcessReport { activity: Some(busy), ..process(11, 1, None) };
        let mut all = [communicator("a", &[10, 11])];
        judge_all(&mut all, &[process(10, 1, finalize), late]);
        check(&all[0].verdict, State::Waiting, &[1], &[0], "it ran on the CPU");
        let mut unread = [communicator("a", &[10, 11, 12])];
        unread[0].ranks.truncate(2);
        judge_all(&mut unread, &[process(10, 1, finalize), process(11, 1, finalize)]);
        check(&unread[0].verdict, State::Unknown, &[], &[], "cannot tell whether ranks that were not read");
        // One that runs inside a call of NCCL's does not go on elsewhere.
        let mut polls = process(11, 1, Some("ncclCommInitRank"));
        polls.activity = Some(Activity { seconds: 1.0, cpu_seconds: Some(0.9), ..Activity::default() });
        let mut two = [communicator("a", &[10, 11])];
        judge_all(&mut two, &[process(10, 1, finalize), polls]);
        assert_eq!(two[0].verdict.state, State::Stuck, "{:#?}", two[0].verdict);
        // All are in it: they are doing it.
        let mut all = [communicator("a", &[10, 11])];
        judge_all(&mut all, &[process(10, 1, finalize), process(11, 1, finalize)]);
        assert_ne!(all[0].verdict.kind, Some(Kind::CallNotMade));
    }
}
