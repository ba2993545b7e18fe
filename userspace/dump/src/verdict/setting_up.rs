//! Judges communicators that are being made: their first connections need every rank, so one that has not
//! come holds up all.

use std::collections::{BTreeMap, BTreeSet};

use super::{BE, Case, Kind, MAX_SENTENCES, Verdict, inside_calls, lines::main_thread_at, subject};
use crate::{FewFiles, ProcessReport, RankReport, Stage};
use nccl_library::fields::root_answers_each_rank;

pub(super) fn setting_up(case: &Case<'_>) -> Option<Verdict> {
    let ranks = case.ranks_where(|rank| rank.set_up.is_some());
    if ranks.is_empty() {
        // An older dump.
        let ranks = case.ranks_where(|rank| rank.status.init.as_deref() == Some("ncclInProgress"));
        return (!ranks.is_empty()).then(|| Verdict::cannot_tell(still_setting_up(&ranks)));
    }
    if case.ranks.values().any(|rank| !rank.motion.is_still()) {
        return Some(Verdict::cannot_tell(still_setting_up(&ranks)));
    }
    let waits = waits(case);
    let mut evidence =
        vec![format!("nothing moved for {:.1} s, and {}", case.seconds, still_setting_up(&ranks))];
    evidence.extend(waits.iter().take(MAX_SENTENCES).map(|(rank, (_, sentence))| {
        let call = case.ranks.get(rank).and_then(|rank| inside_calls::described(case, rank));
        call.map_or_else(|| sentence.clone(), |call| format!("{sentence}, in {call}"))
    }));
    evidence.extend(case.absent_sentences());
    let hindered = [(Kind::Unreachable, unanswered(case)), (Kind::FileLimit, short_of_files(case))];
    if let Some((kind, hindered)) = hindered.into_iter().find(|(_, ranks)| !ranks.is_empty()) {
        evidence.splice(1..1, hindered.values().take(MAX_SENTENCES).cloned());
        let victims = ranks.into_iter().filter(|rank| !hindered.contains_key(rank)).collect::<Vec<u32>>();
        return Some(Verdict::stuck(kind, hindered.into_keys(), victims, evidence));
    }
    // The waiting ends at ranks that have not come. A rank that was not read may itself wait for another
    // missing one, unless it is the only one that is missing.
    let awaited: BTreeSet<u32> = waits.values().flat_map(|(ranks, _)| ranks.clone()).collect();
    let missing: BTreeSet<u32> = case.missing_ranks().into_iter().collect();
    let is_last = case.n_missing() == 1;
    // A process that was read and lives is no rank any more: its set-up has failed, or it has left.
    let vanished = case.vanished();
    let gone: BTreeSet<u32> = vanished.iter().map(|(rank, _)| *rank).collect();
    let culprits: BTreeSet<u32> = match (case.n_missing(), gone.is_empty()) {
        (0, _) => BTreeSet::new(),
        (_, false) => gone.clone(),
        (1, _) => missing.clone(),
        _ => awaited.intersection(&missing).copied().collect(),
    };
    for rank in culprits.iter().take(MAX_SENTENCES).filter(|rank| !gone.contains(rank)) {
        evidence.push(match case.stand_in(*rank) {
            Some(process) => format!(
                "rank {rank} has not come: process {} is the only other one of this job, and is in no such communicator: \
                 inferred that it is rank {rank}{}",
                process.pid,
                main_thread_at(process)
            ),
            None => format!("rank {rank} is waited for, and was not read: it may not have come, or wait itself"),
        });
    }
    if culprits.is_empty() || (!is_last && gone.is_empty()) {
        evidence.extend(case.missing_sentence());
        let what = if case.n_missing() == 0 {
            "cannot tell, because all ranks have come, and what they wait for there cannot be seen"
        } else {
            "cannot tell, because ranks that were not read may not have come, or wait themselves"
        };
        evidence.push(what.to_owned());
        return Some(Verdict { evidence, ..Verdict::default() });
    }
    let kind = vanished.first().map_or(Kind::SettingUp, |(_, kind)| *kind);
    Some(Verdict::stuck(kind, culprits, ranks, evidence))
}

/// Returns each rank in its set-up with the ranks that it waits for, as far as its stage tells.
fn waits(case: &Case<'_>) -> BTreeMap<u32, (Vec<u32>, String)> {
    let wait = |number: u32, rank: &RankReport| {
        let n_ranks = rank.n_ranks.max(1);
        let (next, previous) = ((number + 1) % n_ranks, (number + n_ranks - 1) % n_ranks);
        let (whom, what) = match rank.set_up?.stage? {
            Stage::Beginning => return None,
            Stage::NextRank if root_answers_each_rank(rank.version()) => {
                (vec![next], format!("waits for rank {next} to come"))
            }
            // The root answers when all have come.
            Stage::NextRank => (case.missing_ranks(), "waits for all ranks to come".to_owned()),
            Stage::PreviousRank => (vec![previous], format!("waits for rank {previous} to connect to it")),
            Stage::Exchange => (vec![], "is connected, and waits for the addresses of all ranks".to_owned()),
            Stage::Connecting => {
                (vec![], "knows all ranks, and makes the connections for collectives".to_owned())
            }
        };
        Some((whom, format!("rank {number} {what}")))
    };
    case.ranks.iter().filter_map(|(number, rank)| Some((*number, wait(*number, rank)?))).collect()
}

/// Returns the ranks that try to connect in vain, with a sentence about each.
fn unanswered(case: &Case<'_>) -> BTreeMap<u32, String> {
    let of_rank = |(number, rank): (&u32, &&RankReport)| {
        let process = case.process_of(rank).filter(|process| rank.set_up.is_some() && connects(process))?;
        let tried = process.unanswered.first()?;
        let again = if tried.retries == 1 { "once".to_owned() } else { format!("{} times", tried.retries) };
        let sentence = format!(
            "rank {number} (process {}) tries to connect to {}, and nobody answers (asked again {again}): an interface \
             that cannot be reached from there (NCCL_SOCKET_IFNAME), or a firewall",
            rank.pid, tried.to
        );
        Some((*number, sentence))
    };
    case.ranks.iter().filter_map(of_rank).collect()
}

/// Tells whether a thread of a process makes a connection for NCCL, as far as its functions are known: other
/// threads have connections of their own, as those that report to somewhere.
fn connects(process: &ProcessReport) -> bool {
    let mut functions =
        process.threads.iter().filter_map(|thread| thread.nccl_function.as_deref()).peekable();
    functions.peek().is_none() || functions.any(|function| function.contains("ocket"))
}

/// Judges communicators whose set-up shows only in the call that makes them (2.21 and before, once its first
/// steps are done).
pub(super) fn file_limit(case: &Case<'_>) -> Option<Verdict> {
    let is_inside = |rank: &RankReport| case.process_of(rank).is_some_and(|process| comes_up(rank, process));
    let short = short_of_files(case);
    if short.is_empty() || !case.ranks.values().copied().all(is_inside) {
        return None;
    }
    let evidence = short.values().take(MAX_SENTENCES).cloned().collect();
    Some(case.stuck(Kind::FileLimit, short.into_keys(), evidence))
}

/// Tells whether a rank's communicator is being made: it says so, or it is the only one of a process that is
/// in such a call.
fn comes_up(rank: &RankReport, process: &ProcessReport) -> bool {
    let is_in_call = || process.calls().any(|(_, call)| call.starts_with("ncclCommInit"));
    rank.set_up.is_some() || (process.communicators == 1 && is_in_call())
}

/// Returns the ranks whose processes may open too few files, with a sentence about each; none while a rank
/// has not come, which is reason enough to wait.
fn short_of_files(case: &Case<'_>) -> BTreeMap<u32, String> {
    let of_rank = |(number, rank): (&u32, &&RankReport)| {
        let process = case.process_of(rank)?;
        let FewFiles { open, limit } = process.few_files.filter(|_| comes_up(rank, process))?;
        let sentence = format!(
            "rank {number} (process {}) may open {limit} files, and has {open} open: too few for NCCL's proxy thread: \
             inferred that it has ended, and its rank and others wait for its answer (nccl#550)",
            rank.pid
        );
        Some((*number, sentence))
    };
    case.ranks.iter().filter_map(of_rank).filter(|_| case.n_missing() == 0).collect()
}

fn still_setting_up(ranks: &[u32]) -> String {
    format!("{} still setting the communicator up", subject(ranks, BE))
}

#[cfg(test)]
mod tests {
    use inspect::threads::Thread;

    use super::*;
    use crate::{
        Counters, LibraryReport, ProcessState,
        absent::{AbsentPeer, AbsentRank, Place},
        activity::Activity,
        set_up::SetUp,
        unanswered::Unanswered,
        verdict::{
            State, judge,
            tests::made::{check, in_call, rank},
        },
    };

    fn coming(number: u32, stage: Option<Stage>) -> RankReport {
        let mut rank = rank(number, 0, Vec::new());
        rank.channels.clear();
        rank.counters = Counters::default();
        rank.status.init = Some("ncclInProgress".to_owned());
        rank.nccl_version = Some("2.28.9".to_owned());
        rank.set_up = Some(SetUp { stage });
        rank
    }

    /// Stages in 2.23 and later if rank 3 of four has not come.
    fn without_the_last() -> [RankReport; 3] {
        [
            coming(0, Some(Stage::PreviousRank)),
            coming(1, Some(Stage::Exchange)),
            coming(2, Some(Stage::NextRank)),
        ]
    }

    fn process(pid: u32, name: &str) -> ProcessReport {
        ProcessReport {
            pid,
            name: name.to_owned(),
            state: ProcessState::Running,
            libraries: vec![LibraryReport::default()],
            ..ProcessReport::default()
        }
    }

    #[test]
    fn a_rank_that_has_not_come_is_named_with_those_that_wait_for_its_handshake() {
        let verdict = judge(&without_the_last(), &[]);
        check(&verdict, State::Stuck, &[3], &[0, 1, 2], "rank 2 waits for rank 3 to come");
        check(&verdict, State::Stuck, &[3], &[0, 1, 2], "rank 0 waits for rank 3 to connect to it");
        check(&verdict, State::Stuck, &[3], &[0, 1, 2], "rank 3 is waited for, and was not read");
        assert_eq!(verdict.kind, Some(Kind::SettingUp));
        // Where the layouts tell no stage, the only one that is missing is the one.
        let bare = [0, 1, 2].map(|number| coming(number, None));
        check(&judge(&bare, &[]), State::Stuck, &[3], &[0, 1, 2], "still setting the communicator up");
    }

    #[test]
    fn a_process_of_the_job_that_is_in_no_such_communicator_is_inferred_to_be_the_rank() {
        let mut processes: Vec<ProcessReport> = (100..104).map(|pid| process(pid, "train")).collect();
        let verdict = judge(&without_the_last(), &processes);
        check(&verdict, State::Stuck, &[3], &[0, 1, 2], "process 103 is the only other one of this job");
        // The process still loads its program.
        processes[3].activity =
            Some(Activity { seconds: 1.0, cpu_seconds: Some(0.9), ..Activity::default() });
        check(&judge(&without_the_last(), &processes), State::Waiting, &[3], &[0, 1, 2], "it ran on the CPU");
        // Another program, or two of them, is no proof.
        processes.push(process(104, "train"));
        let verdict = judge(&without_the_last(), &processes);
        check(&verdict, State::Stuck, &[3], &[0, 1, 2], "rank 3 is waited for, and was not read");
        processes.truncate(3);
        processes.push(process(103, "other"));
        let verdict = judge(&without_the_last(), &processes);
        check(&verdict, State::Stuck, &[3], &[0, 1, 2], "rank 3 is waited for, and was not read");
    }

    #[test]
    fn a_process_that_may_open_too_few_files_is_named_once_all_have_come() {
        let few = FewFiles { open: 13, limit: 46 };
        let processes = [100, 101, 102, 103]
            .map(|pid| ProcessReport { few_files: (pid == 102).then_some(few), ..process(pid, "train") });
        let all = [0, 1, 2, 3].map(|number| coming(number, Some(Stage::Connecting)));
        let verdict = judge(&all, &processes);
        check(
            &verdict,
            State::Stuck,
            &[2],
            &[0, 1, 3],
            "rank 2 (process 102) may open 46 files, and has 13 open",
        );
        assert_eq!(verdict.kind, Some(Kind::FileLimit));
        // Up to 2.21 only the call tells that it is being made.
        let old = [0, 1, 2, 3].map(|number| RankReport { set_up: None, ..coming(number, None) });
        let old = old.map(|mut rank| {
            rank.status.init = None;
            rank
        });
        let inside = processes.each_ref().map(|one| ProcessReport {
            few_files: one.few_files,
            ..in_call(one.pid, 1, Some("ncclCommInitRank"))
        });
        check(&judge(&old, &inside), State::Stuck, &[2], &[0, 1, 3], "may open 46 files");
        // One that has not come is what it waits for.
        let verdict = judge(&without_the_last(), &processes);
        assert_eq!((verdict.kind, &*verdict.culprits), (Some(Kind::SettingUp), &[3][..]));
        // It goes on.
        let mut moving = all;
        moving[1].motion.counters_moved = true;
        assert_eq!(judge(&moving, &processes).state, State::Unknown);
    }

    #[test]
    fn of_several_that_were_not_read_none_is_named() {
        let two = [coming(0, Some(Stage::PreviousRank)), coming(1, Some(Stage::NextRank))];
        let verdict = judge(&two, &[]);
        check(&verdict, State::Unknown, &[], &[], "rank 1 waits for rank 2 to come");
        check(&verdict, State::Unknown, &[], &[], "rank 2 is waited for, and was not read");
        // Up to 2.22 the root answers when all have come.
        let mut old = without_the_last();
        for rank in &mut old {
            rank.nccl_version = Some("2.21.5".to_owned());
            rank.set_up = Some(SetUp { stage: Some(Stage::NextRank) });
        }
        check(&judge(&old, &[]), State::Stuck, &[3], &[0, 1, 2], "rank 0 waits for all ranks to come");
        // All have come.
        let all = [0, 1, 2, 3].map(|number| coming(number, Some(Stage::Connecting)));
        check(&judge(&all, &[]), State::Unknown, &[], &[], "all ranks have come");
        // One goes on.
        let mut moving = without_the_last();
        moving[1].motion.counters_moved = true;
        check(&judge(&moving, &[]), State::Unknown, &[], &[], "still setting");
    }

    #[test]
    fn one_that_ncclflow_or_nccl_found_dead_is_named_among_several_that_were_not_read() {
        let mut two = [coming(0, Some(Stage::Connecting)), coming(1, Some(Stage::Connecting))];
        let peer = AbsentPeer { host: "10.0.0.7".to_owned(), pid: 4711, gpus: vec![3], is_dead: true };
        two[0].absent = vec![AbsentRank { rank: 2, place: Place::Elsewhere, pid: None, peer: Some(peer) }];
        let verdict = judge(&two, &[]);
        check(&verdict, State::Stuck, &[2], &[0, 1], "rank 2 was process 4711 of host 10.0.0.7 (GPU 3)");
        assert_eq!(verdict.kind, Some(Kind::Gone));
    }

    /// nccl#913: an interface that the others cannot reach.
    #[test]
    fn a_connection_that_nobody_answers_is_why_the_set_up_stands() {
        let all = [0, 1, 2, 3].map(|number| coming(number, Some(Stage::NextRank)));
        let tried = Unanswered { to: "172.17.0.2:51011".to_owned(), retries: 4 };
        let tries = ProcessReport { unanswered: vec![tried], ..process(101, "train") };
        let verdict = judge(&all, &[process(100, "train"), tries.clone()]);
        let said = "rank 1 (process 101) tries to connect to 172.17.0.2:51011, and nobody answers (asked again 4 times)";
        check(&verdict, State::Stuck, &[1], &[0, 2, 3], said);
        assert_eq!(verdict.kind, Some(Kind::Unreachable));
        // A thread that reports to somewhere has such a connection, too.
        let inside = |function: &str| {
            let thread = Thread { nccl_function: Some(function.to_owned()), ..Thread::default() };
            let tries = ProcessReport { threads: vec![thread], ..tries.clone() };
            judge(&all, &[process(100, "train"), tries]).kind
        };
        assert_eq!(inside("socketPollConnect"), Some(Kind::Unreachable));
        assert_eq!(inside("bootstrapRingAllGather"), None);
    }
}
