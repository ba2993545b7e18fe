//! Judges communicators without ops in flight of which threads are inside a call of NCCL: they connect, or
//! wait for room.

use std::collections::{BTreeMap, BTreeSet};

use super::{BE, Case, Kind, MAX_SENTENCES, Verdict, subject};
use crate::{CommunicatorReport, ProcessReport, RankReport, Work};

pub(super) fn inside_calls(case: &Case<'_>) -> Option<Verdict> {
    // NCCL does not count sends and receives over NVLink: threads that launch them are now inside a call, now
    // not. Where no other communicator explains the data that move, it is theirs.
    let moves = |(number, rank): (&u32, &&RankReport)| {
        rank.work() == Some(Work::Moves) && !case.is_explained(*number)
    };
    if case.ranks.iter().any(moves) {
        return None;
    }
    let mut inside: BTreeMap<u32, String> = BTreeMap::new();
    let mut is_sure = case.n_missing() == 0;
    for (number, rank) in &case.ranks {
        let Some((process, thread, call)) = call_of(case, rank) else { continue };
        // The communicator of a call was in registers that have been used again since. The communicator
        // itself knows whether it is part of a group.
        let in_group = rank.pending.as_ref().and_then(|pending| pending.in_group);
        if in_group == Some(false) && process.communicators > 1 && !call.starts_with("ncclComm") {
            continue;
        }
        let is_known = process.communicators == 1 || in_group == Some(true);
        // Sends and receives wait for their peers only, which may be inside, too.
        let is_p2p = rank.pending.as_ref().is_some_and(|pending| pending.collectives == 0 && pending.p2p > 0);
        is_sure &= is_known && !is_p2p && !call.starts_with("ncclComm");
        let pid = rank.pid;
        inside.insert(*number, format!("rank {number} is inside {call} (thread {thread} of process {pid})"));
    }
    if inside.is_empty() {
        return None;
    }
    let outside = case.ranks_where(|rank| !inside.contains_key(&rank.rank));
    let nothing = format!("no NCCL op in flight, and nothing was launched for {:.1} s", case.seconds);
    let mut evidence = vec![nothing];
    evidence.extend(inside.into_values().take(MAX_SENTENCES));
    if is_sure && !outside.is_empty() {
        evidence.push(format!(
            "{} in no call of NCCL: inferred that the others wait for it there, to connect or for room",
            subject(&outside, BE)
        ));
        return Some(case.stuck(Kind::Connecting, outside, evidence));
    }
    let why = "cannot tell, because which communicator a call is for, or what it waits for, cannot be seen";
    evidence.push(why.to_owned());
    Some(Verdict { evidence, ..Verdict::default() })
}

/// Takes back that ranks wait in a call to connect whose processes go on in other communicators. Their
/// threads come and go: the moment at which one was seen in a call is not that at which the communicator was
/// seen to be part of a group.
pub(super) fn leave_out_those_that_pass(communicators: &mut [CommunicatorReport]) {
    let moving: BTreeSet<(String, u32)> = communicators
        .iter()
        .flat_map(|one| &one.ranks)
        .filter(|rank| rank.motion.steps_moved || rank.motion.counters_moved)
        .map(|rank| (rank.host.clone(), rank.pid))
        .collect();
    for CommunicatorReport { ranks, verdict, .. } in communicators {
        let passes = |victim: &u32| {
            let rank = ranks.iter().find(|rank| rank.rank == *victim);
            rank.is_some_and(|rank| moving.contains(&(rank.host.clone(), rank.pid)))
        };
        if verdict.kind == Some(Kind::Connecting) && verdict.victims.iter().all(passes) {
            let why = "cannot tell, because these processes go on in other communicators: their threads come and go";
            let evidence = std::mem::take(&mut verdict.evidence);
            let seen =
                evidence.into_iter().filter(|sentence| !sentence.contains("inferred that the others wait"));
            *verdict = Verdict { evidence: seen.chain([why.to_owned()]).collect(), ..Verdict::default() };
        }
    }
}

/// Returns the process of a rank, and a thread in it with a call of NCCL's that does more than ask; one is
/// enough.
fn call_of<'a>(case: &Case<'a>, rank: &RankReport) -> Option<(&'a ProcessReport, u32, &'a str)> {
    let process = case.process_of(rank)?;
    let (thread, call) = process.calls().find(|(_, call)| !asks_only(call))?;
    Some((process, thread, call))
}

/// Describes the call that a thread of the rank is in: `ncclGroupEnd (thread 812)`.
pub(super) fn described(case: &Case<'_>, rank: &RankReport) -> Option<String> {
    call_of(case, rank).map(|(_, thread, call)| format!("{call} (thread {thread})"))
}

/// Describes the call in which a thread of the rank waits, if that is a call for this communicator.
pub(super) fn waits_in_call(case: &Case<'_>, rank: &RankReport) -> Option<String> {
    let is_in_group = rank.pending.as_ref()?.in_group == Some(true);
    described(case, rank).filter(|_| is_in_group)
}

/// Tells whether a call waits for nothing.
fn asks_only(call: &str) -> bool {
    call.starts_with("ncclGet")
        || matches!(call, "ncclCommGetAsyncError" | "ncclCommCount" | "ncclCommUserRank")
}

#[cfg(test)]
mod tests {
    use inspect::threads::Thread;

    use crate::{
        Pending, ProcessReport, Work,
        verdict::{
            Kind, State, judge, judge_all,
            tests::made::{check, communicator, in_call, over_nvlink},
        },
    };

    #[test]
    fn a_thread_inside_a_call_waits_there_unless_it_comes_and_goes_or_data_move() {
        let judged = |work, passes| {
            let ranks: Vec<_> = (0..4).map(|number| over_nvlink(number, 3, Some(work))).collect();
            let processes = ranks.iter().map(|rank| {
                let call = (rank.rank == 0).then(|| "ncclGroupEnd".to_owned());
                let thread = Thread { tid: rank.pid, nccl_api: call, passes, ..Thread::default() };
                ProcessReport {
                    pid: rank.pid,
                    communicators: 1,
                    threads: vec![thread],
                    ..ProcessReport::default()
                }
            });
            judge(&ranks, &processes.collect::<Vec<_>>())
        };
        let verdict = judged(Work::Waits, false);
        check(&verdict, State::Stuck, &[1, 2, 3], &[0], "in no call of NCCL");
        assert_eq!(verdict.kind, Some(Kind::Connecting));
        check(&judged(Work::Moves, false), State::Healthy, &[], &[], "moved data over NVLink");
        check(&judged(Work::Idle, true), State::Healthy, &[], &[], "no GPU runs a kernel");
    }
    /// A pipeline: rank 3 was in a receive when its communicators were read, and in an all-reduce of its
    /// stage when its thread was looked at. Seen once in a thousand dumps of such jobs, with 2.27.5 on the
    /// bed.
    #[test]
    fn a_thread_of_a_process_that_goes_on_in_another_communicator_only_passes() {
        let judged = |goes_on| {
            let mut all = [communicator("world", &[10, 11, 12, 13]), communicator("stage", &[12, 13])];
            let pending = Pending { in_group: Some(true), ..Pending::default() };
            all[0].ranks[3].pending = Some(pending);
            for rank in &mut all[1].ranks {
                rank.motion.counters_moved = goes_on;
            }
            let call = |pid| (pid == 13).then_some("ncclAllReduce");
            let processes: Vec<_> = (10..14).map(|pid| in_call(pid, 2, call(pid))).collect();
            judge_all(&mut all, &processes);
            all[0].verdict.clone()
        };
        check(&judged(false), State::Stuck, &[0, 1, 2], &[3], "ranks 0, 1, 2 are in no call of NCCL");
        check(&judged(true), State::Unknown, &[], &[], "these processes go on in other communicators");
    }
}
