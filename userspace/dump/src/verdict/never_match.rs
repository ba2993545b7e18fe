//! Set-ups that can never end, however long one waits: other unique ids, one rank twice, other sizes, other
//! versions of NCCL. They show only where the incomplete communicators of one job are put side by side.

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, Kind, State, Verdict, named, subject};
use crate::{CommunicatorReport, Owner, ProcessId, ProcessReport, ProcessState, RankReport};
use flow::text::joined;

/// Hash of a communicator that has none yet.
const UNKNOWN_HASH: &str = "0x0000000000000000";
/// Maximum number of communicators that are named in a sentence.
const SHOWN: usize = 8;

/// Judges a communicator that is being made, and in which two processes have one rank.
pub(super) fn one_rank_twice(case: &Case<'_>) -> Option<Verdict> {
    let mut by_rank: BTreeMap<u32, BTreeSet<ProcessId<'_>>> = BTreeMap::new();
    for rank in case.reports.iter().filter(|rank| rank.set_up.is_some()) {
        by_rank.entry(rank.rank).or_default().insert(rank.process());
    }
    by_rank.retain(|_, processes| processes.len() > 1);
    let (rank, processes) = by_rank.first_key_value()?;
    // Up to 2.22 the hash comes when the ranks have met (src/init.cc, ncclCommInitRankFunc).
    if case.reports.iter().all(|rank| rank.comm_hash == UNKNOWN_HASH) {
        return Some(Verdict::cannot_tell(
            "communicators are being made that have no hash yet: their ranks wait for others, and cannot be told apart",
        ));
    }
    let pids = joined(processes.iter().take(SHOWN).map(|(_, pid)| pid), ", ");
    let nobody = match case.n_missing() {
        0 => String::new(),
        _ => format!(", and none is {}", named(case.missing_ranks())),
    };
    let evidence =
        format!("processes {pids} are each rank {rank} of {}{nobody}: they can never match", case.n_ranks);
    Some(case.stuck(Kind::NeverMatches, by_rank.into_keys(), vec![evidence]))
}

/// Judges incomplete communicators of one job together, and names what is different.
pub(super) fn explain(communicators: &mut [CommunicatorReport], processes: &[ProcessReport]) {
    let made: Vec<(usize, &CommunicatorReport)> =
        communicators.iter().enumerate().filter(|(_, one)| is_being_made(one)).collect();
    let mut found = other_sizes(&made);
    found.extend(other_unique_ids(&made, processes));
    for (group, evidence) in found {
        for at in group {
            let one = &mut communicators[at];
            let victims = one.ranks.iter().map(|rank| rank.rank);
            one.verdict = Verdict::stuck(Kind::NeverMatches, [], victims, vec![evidence.clone()]);
        }
    }
    for communicator in communicators.iter_mut().filter(|one| one.verdict.state != State::Healthy) {
        communicator.verdict.evidence.extend(other_versions(&communicator.ranks));
    }
}

/// Says that the ranks have different versions of NCCL.
fn other_versions(ranks: &[RankReport]) -> Option<String> {
    let mut by_version: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for rank in ranks {
        by_version.entry(rank.nccl_version.as_deref()?).or_default().push(rank.rank);
    }
    let of = by_version
        .iter()
        .map(|(version, ranks)| format!("{} NCCL {version}", subject(ranks, ["has", "have"])));
    (by_version.len() > 1)
        .then(|| format!("{}: the ranks of a communicator need one version", joined(of, ", ")))
}

fn is_being_made(communicator: &CommunicatorReport) -> bool {
    let ranks = &communicator.ranks;
    !ranks.is_empty()
        && ranks.len() < communicator.n_ranks as usize
        && ranks.iter().all(|rank| rank.set_up.is_some() && rank.motion.is_still())
}

/// Communicators that are being made, with their places in the report.
type Group<'a> = Vec<(usize, &'a CommunicatorReport)>;

/// Places of communicators that can never be made, and the reason.
type Found = Vec<(Vec<usize>, String)>;

fn places(group: &Group<'_>) -> Vec<usize> {
    group.iter().map(|(at, _)| *at).collect()
}

/// Communicators of one unique id whose ranks were told other sizes. Before 2.24 two splits of one parent can
/// have one hash.
fn other_sizes(made: &Group<'_>) -> Found {
    let mut by_hash: BTreeMap<&str, Group<'_>> = BTreeMap::new();
    let tells_splits_apart =
        |rank: &RankReport| rank.version().is_some_and(|version| (version.major, version.minor) >= (2, 24));
    for (at, one) in made.iter().filter(|(_, one)| one.ranks.iter().all(tells_splits_apart)) {
        by_hash.entry(&one.comm_hash).or_default().push((*at, one));
    }
    let told = |(hash, group): (&str, Group<'_>)| {
        let sizes: BTreeSet<u32> = group.iter().map(|(_, one)| one.n_ranks).collect();
        if sizes.len() < 2 {
            return None;
        }
        let of = group.iter().map(|(_, one)| {
            format!("{} called it with {} ranks", named(one.ranks.iter().map(|rank| rank.rank)), one.n_ranks)
        });
        let of = joined(of, ", ");
        let evidence = format!("one unique id ({hash}), and other sizes: {of}: they can never match");
        Some((places(&group), evidence))
    };
    by_hash.into_iter().filter_map(told).collect()
}

/// Communicators of one size, user, job and program, each of which has only some ranks, and that together
/// have each rank once.
fn other_unique_ids(made: &Group<'_>, processes: &[ProcessReport]) -> Found {
    type Job<'a> = (u32, Option<&'a Owner>, &'a str);
    let mut by_job: BTreeMap<Job<'_>, Group<'_>> = BTreeMap::new();
    for (at, one) in made {
        let first = one.ranks.first().and_then(|rank| ProcessReport::of(rank, processes));
        let Some(process) = first else { continue };
        by_job.entry((one.n_ranks, process.owner.as_ref(), &process.name)).or_default().push((*at, one));
    }
    let told = |((n_ranks, ..), group): (Job<'_>, Group<'_>)| {
        let ranks: Vec<&RankReport> = group.iter().flat_map(|(_, one)| &one.ranks).collect();
        let mut numbers: Vec<u32> = ranks.iter().map(|rank| rank.rank).collect();
        numbers.sort_unstable();
        // Two groups of two, each of which lacks one, also have each rank once; but then other processes of
        // the job are still to come.
        if group.len() < 2 || !numbers.iter().copied().eq(0..n_ranks) || !have_come(&ranks, processes) {
            return None;
        }
        let of = group.iter().take(SHOWN).map(|(_, one)| {
            let numbers = named(one.ranks.iter().map(|rank| rank.rank));
            let pids = joined(one.ranks.iter().map(|rank| rank.pid), ", ");
            format!("{} has only {numbers} (process {pids})", one.comm_hash)
        });
        let evidence = format!(
            "{} communicators of {n_ranks} ranks are being made that together have each rank once: {}: their unique \
             ids differ, so that they can never match (one process must make the id, and give it to all)",
            group.len(),
            joined(of, "; ")
        );
        Some((places(&group), evidence))
    };
    by_job.into_iter().filter_map(told).collect()
}

/// Tells whether every process of the ranks' job has one of them.
fn have_come(ranks: &[&RankReport], processes: &[ProcessReport]) -> bool {
    let has_come = |process: &&ProcessReport| ranks.iter().any(|rank| process.is_of(rank));
    let Some(first) = processes.iter().find(has_come) else { return false };
    let mut like = processes.iter().filter(|process| {
        process.is_like(first)
            && process.state != ProcessState::Exited
            && process.forked_from.is_none()
            && process.left_over_of.is_empty()
    });
    like.all(|process| has_come(&process))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        LibraryReport,
        set_up::{SetUp, Stage},
        verdict::{
            judge, judge_all,
            tests::made::{check, rank},
        },
    };

    fn coming(number: u32, pid: u32, hash: &str, n_ranks: u32) -> RankReport {
        RankReport {
            comm_hash: hash.to_owned(),
            pid,
            n_ranks,
            channels: Vec::new(),
            set_up: Some(SetUp { stage: Some(Stage::NextRank) }),
            nccl_version: Some("2.27.5".to_owned()),
            ..rank(number, 0, Vec::new())
        }
    }

    fn communicator(hash: &str, n_ranks: u32, ranks: &[(u32, u32)]) -> CommunicatorReport {
        CommunicatorReport {
            comm_hash: hash.to_owned(),
            n_ranks,
            ranks: ranks.iter().map(|(number, pid)| coming(*number, *pid, hash, n_ranks)).collect(),
            ..CommunicatorReport::default()
        }
    }

    fn process(pid: u32, name: &str) -> ProcessReport {
        let libraries = vec![LibraryReport::default()];
        ProcessReport { pid, name: name.to_owned(), libraries, ..ProcessReport::default() }
    }

    /// nccl#73: each process makes its own id.
    #[test]
    fn communicators_with_one_rank_each_have_other_ids() {
        let processes = [process(10, "train"), process(11, "train"), process(12, "train")];
        let mut all = [
            communicator("a", 3, &[(0, 10)]),
            communicator("b", 3, &[(1, 11)]),
            communicator("c", 3, &[(2, 12)]),
        ];
        judge_all(&mut all, &processes);
        for (number, one) in (0..).zip(&all) {
            check(&one.verdict, State::Stuck, &[], &[number], "3 communicators of 3 ranks are being made");
            check(&one.verdict, State::Stuck, &[], &[number], "their unique ids differ");
            assert_eq!(one.verdict.kind, Some(Kind::NeverMatches));
        }
        // One of another program, or a rank that is nowhere: its process may still come.
        let others = [process(10, "train"), process(11, "train"), process(12, "other")];
        judge_all(&mut all, &others);
        assert!(all.iter().all(|one| one.verdict.kind != Some(Kind::NeverMatches)));
        judge_all(&mut all[..2], &processes);
        assert!(all[..2].iter().all(|one| one.verdict.kind != Some(Kind::NeverMatches)));
        // Two groups of two processes, one of each of which has not come yet.
        let four = [process(10, "train"), process(11, "train"), process(12, "train"), process(13, "train")];
        let mut groups = [communicator("a", 2, &[(0, 10)]), communicator("b", 2, &[(1, 13)])];
        judge_all(&mut groups, &four);
        assert!(groups.iter().all(|one| one.verdict.kind != Some(Kind::NeverMatches)), "{groups:#?}");
    }

    /// nccl#1328: two processes with one rank.
    /// Up to 2.22 two groups of a job that wait for another host look like one, which has a rank twice.
    #[test]
    fn communicators_without_a_hash_are_not_told_apart() {
        let ranks = [coming(0, 10, UNKNOWN_HASH, 2), coming(0, 11, UNKNOWN_HASH, 2)];
        check(&judge(&ranks, &[]), State::Unknown, &[], &[], "that have no hash yet");
    }

    #[test]
    fn one_number_twice_is_named_with_the_one_that_nobody_has() {
        let ranks = [coming(0, 10, "a", 3), coming(1, 11, "a", 3), coming(1, 12, "a", 3)];
        let verdict = judge(&ranks, &[]);
        check(
            &verdict,
            State::Stuck,
            &[1],
            &[0],
            "processes 11, 12 are each rank 1 of 3, and none is rank 2",
        );
        assert_eq!(verdict.kind, Some(Kind::NeverMatches));
        // One dump was merged twice.
        let ranks = [coming(0, 10, "a", 3), coming(1, 11, "a", 3), coming(1, 11, "a", 3)];
        assert_eq!(judge(&ranks, &[]).state, State::Unknown);
    }

    #[test]
    fn one_id_with_other_sizes_is_named_and_so_are_other_versions() {
        let processes = [process(10, "train"), process(11, "train")];
        let mut all = [communicator("a", 3, &[(0, 10)]), communicator("a", 4, &[(1, 11)])];
        judge_all(&mut all, &processes);
        check(
            &all[0].verdict,
            State::Stuck,
            &[],
            &[0],
            "one unique id (a), and other sizes: rank 0 called it with 3",
        );
        check(&all[1].verdict, State::Stuck, &[], &[1], "rank 1 called it with 4 ranks");
        let mut one = [communicator("a", 3, &[(0, 10), (1, 11)])];
        one[0].ranks[1].nccl_version = Some("2.21.5".to_owned());
        judge_all(&mut one, &processes);
        let said =
            "rank 1 has NCCL 2.21.5, rank 0 has NCCL 2.27.5: the ranks of a communicator need one version";
        assert!(one[0].verdict.evidence.iter().any(|line| line == said), "{:#?}", one[0].verdict);
    }
}
