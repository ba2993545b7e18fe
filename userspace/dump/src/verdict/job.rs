//! Judges the whole job in one sentence: of several communicators that do not move, it names the one that the
//! others wait for.

use std::{cmp::Reverse, collections::BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    Case, Kind, State, Verdict, circles,
    common_calls::{self, CommonCall},
    named, noted, torch_set_up,
};
use crate::{AbsentRank, CommunicatorReport, ProcessId, ProcessReport, RankReport};
use flow::text::joined;

/// Verdict on a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobVerdict {
    /// The worst state of all communicators.
    pub state: State,
    /// Kind of the verdict on the first communicator below, or on the job where no communicator tells.
    #[serde(default)]
    pub kind: Option<Kind>,
    pub sentence: String,
    /// What to do, or where to look next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Communicators at which the waiting ends; several that do not wait for each other, or that do in a
    /// circle.
    pub communicators: Vec<String>,
}

/// A communicator in which ranks wait.
pub(super) struct Waiting<'a> {
    pub(super) report: &'a CommunicatorReport,
    /// Processes of the ranks that are waited for, as far as they were read.
    culprits: BTreeSet<ProcessId<'a>>,
    pub(super) victims: BTreeSet<ProcessId<'a>>,
    /// The call that they wait in, if it is one that all ranks must make.
    pub(super) call: Option<&'a CommonCall>,
}

impl<'a> Waiting<'a> {
    fn new(
        report: &'a CommunicatorReport,
        processes: &'a [ProcessReport],
        call: Option<&'a CommonCall>,
    ) -> Self {
        let verdict = &report.verdict;
        let mut culprits = processes_of(report, &verdict.culprits);
        if verdict.kind == Some(Kind::SettingUp) {
            static NOBODY: BTreeSet<(String, u32)> = BTreeSet::new();
            let case = Case::new(&report.ranks, processes, &NOBODY, None);
            let stand_in = |rank: &u32| Some(case.as_ref()?.stand_in(*rank)?.id());
            culprits.extend(verdict.culprits.iter().filter_map(stand_in));
        }
        let victims = processes_of(report, &verdict.victims);
        let call = call.filter(|_| verdict.kind == Some(Kind::CallNotMade));
        Self { report, culprits, victims, call }
    }

    /// Tells whether a rank that is waited for here waits in the other communicator.
    pub(super) fn waits_for(&self, other: &Self) -> bool {
        !std::ptr::eq(self.report, other.report)
            && self.culprits.iter().any(|process| other.victims.contains(process))
    }

    /// Returns the communicator's name; a hash says nothing to people.
    pub(super) fn name(&self) -> String {
        let hash = &self.report.comm_hash;
        self.report.name.as_ref().map_or_else(|| hash.clone(), |name| format!("\"{name}\""))
    }

    /// Tells whether its ranks wait in a call that all must make.
    pub(super) fn is_in_a_call(&self) -> bool {
        matches!(self.report.verdict.kind, Some(Kind::CallNotMade | Kind::SettingUp))
    }
}

fn processes_of<'a>(report: &'a CommunicatorReport, numbers: &[u32]) -> BTreeSet<ProcessId<'a>> {
    let read = report.ranks.iter().filter(|rank| numbers.contains(&rank.rank)).map(RankReport::process);
    // One that lives, and is not among the ranks, is on the host of those that know of it.
    let absent = absent_of(report).filter(|(_, absent)| numbers.contains(&absent.rank));
    read.chain(absent.filter_map(|(rank, absent)| Some((&*rank.host, absent.pid?)))).collect()
}

/// Returns the ranks that were not found, each with a rank that knows of it.
fn absent_of(report: &CommunicatorReport) -> impl Iterator<Item = (&RankReport, &AbsentRank)> {
    report.ranks.iter().flat_map(|rank| rank.absent.iter().map(move |absent| (rank, absent)))
}

/// Says which rank of the job a process is, where its number there is another one: `rank 3 of the job: `.
fn of_job(process: Option<&ProcessReport>, number: u32) -> String {
    let of_job = process.and_then(|process| process.job_rank).filter(|of_job| *of_job != number);
    of_job.map_or_else(String::new, |of_job| format!("rank {of_job} of the job: "))
}

/// Names a rank that is not among those that were read by its process, as far as it is known.
fn absent_by_process(
    report: &CommunicatorReport,
    number: u32,
    processes: &[ProcessReport],
) -> Option<String> {
    let (rank, absent) = absent_of(report)
        .find(|(_, absent)| absent.rank == number && (absent.pid.is_some() || absent.peer.is_some()))?;
    let Some(pid) = absent.pid else {
        let peer = absent.peer.as_ref()?;
        return Some(format!("rank {number} (it was process {} of host {})", peer.pid, peer.host));
    };
    let process = processes.iter().find(|process| process.id() == (&*rank.host, pid));
    Some(format!("rank {number} ({}process {pid})", of_job(process, number)))
}

fn has_several_hosts(communicators: &[CommunicatorReport]) -> bool {
    let mut hosts = communicators.iter().flat_map(|one| &one.ranks).map(|rank| &rank.host);
    hosts.next().is_some_and(|first| hosts.any(|host| host != first))
}

/// Names a rank that is waited for by what one acts on: its rank in the job, PID, host and GPU, as far as
/// they are known. The host is said where there are several.
fn acted_on(communicators: &[CommunicatorReport], rank: &RankReport, processes: &[ProcessReport]) -> String {
    let of_job = of_job(ProcessReport::of(rank, processes), rank.rank);
    let host = if has_several_hosts(communicators) { format!(" on {}", rank.host) } else { String::new() };
    // As nvidia-smi numbers them.
    let gpu = rank.nvml_dev.map_or_else(String::new, |gpu| format!(", GPU {gpu}"));
    format!("rank {} ({of_job}process {}{host}{gpu})", rank.rank, rank.pid)
}

/// Judges a job by its communicators; where they tell of nothing that is stuck, by what torch's calls tell.
pub(crate) fn over(communicators: &[CommunicatorReport], processes: &[ProcessReport]) -> Option<JobVerdict> {
    let by_communicators = over_communicators(communicators, processes);
    let tells = |job: &JobVerdict| matches!(job.state, State::Stuck | State::Waiting);
    let moves = |rank: &RankReport| rank.motion.steps_moved || rank.motion.counters_moved;
    let is_settled =
        |job: &JobVerdict| tells(job) || communicators.iter().any(|one| one.ranks.iter().any(moves));
    match by_communicators {
        Some(job) if is_settled(&job) => Some(job),
        Some(job) => Some(torch_set_up::judge(processes).filter(tells).unwrap_or(job)),
        None => torch_set_up::judge(processes),
    }
}

fn over_communicators(
    communicators: &[CommunicatorReport],
    processes: &[ProcessReport],
) -> Option<JobVerdict> {
    let state = communicators.iter().map(|communicator| communicator.verdict.state).max()?;
    let calls = common_calls::find(communicators, processes);
    let waiting: Vec<Waiting<'_>> = communicators
        .iter()
        .enumerate()
        .filter(|(_, report)| matches!(report.verdict.state, State::Stuck | State::Waiting))
        .map(|(at, report)| Waiting::new(report, processes, calls.get(&at)))
        .collect();
    let several = |count: usize| if count == 1 { "" } else { "s" };
    if waiting.is_empty() {
        let unknown = communicators.iter().filter(|one| one.verdict.state == State::Unknown).count();
        let sentence = match unknown {
            0 => "healthy: no communicator waits for a rank".to_owned(),
            count => {
                format!("cannot tell for {count} communicator{}, and no other one is stuck", several(count))
            }
        };
        let next = communicators.iter().find_map(|one| one.verdict.update());
        return Some(JobVerdict { state, sentence, next, ..JobVerdict::default() });
    }
    let mut ends: Vec<&Waiting<'_>> =
        waiting.iter().filter(|one| !waiting.iter().any(|other| one.waits_for(other))).collect();
    let is_circle = ends.is_empty();
    if is_circle {
        ends = circles::of(&waiting);
    }
    // Of several, one that is stuck says more than one that waits, in a circle a call more than an operation, and
    // an operation that differs more than one that a rank has not come to: it is in the other one meanwhile. What
    // only GPUs tell says least.
    ends.sort_by_key(|one| {
        let Verdict { state, kind, .. } = one.report.verdict;
        let differs = kind == Some(Kind::OtherOperation) && noted::tell_a_difference(&one.report.ranks);
        let weight = (!differs, !differs && one.report.is_by_gpus());
        (Reverse(state), is_circle && !one.is_in_a_call(), weight, one.report.comm_hash.clone())
    });
    let hashes: Vec<String> = ends.iter().map(|one| one.report.comm_hash.clone()).collect();
    let first = ends.first()?;
    let what = if first.report.verdict.state == State::Waiting { "waiting" } else { "stuck" };
    let behind = waiting.len().saturating_sub(ends.len());
    let for_these = |behind| format!("; {behind} other communicator{} for what waits there", several(behind));
    let sentence = if is_circle {
        let behind = if behind == 0 { String::new() } else { for_these(behind) };
        format!("{}{behind}", circles::sentence(what, &ends))
    } else {
        let culprits = &first.report.verdict.culprits;
        let several_hosts = has_several_hosts(communicators);
        let by_process = |ranks: &[u32], processes: &BTreeSet<ProcessId<'_>>| {
            let process = |(host, pid): &ProcessId<'_>| {
                if several_hosts { format!("{pid} on {host}") } else { pid.to_string() }
            };
            let pids = joined(processes.iter().take(8).map(process), ", ");
            let pids = match processes.len() {
                0 => pids,
                1 => format!(" (process {pids})"),
                _ => format!(" (processes {pids})"),
            };
            format!("{}{pids}", named(ranks))
        };
        let read = |number: &u32| first.report.ranks.iter().find(|rank| rank.rank == *number);
        let whom = if culprits.is_empty() {
            "no rank that can be named".to_owned()
        } else if let [one] = &**culprits
            && let Some(rank) = read(one)
        {
            acted_on(communicators, rank, processes)
        } else if let [one] = &**culprits
            && let Some(absent) = absent_by_process(first.report, *one, processes)
        {
            absent
        } else {
            by_process(culprits, &first.culprits)
        };
        let is_same = ends.iter().all(|one| one.culprits == first.culprits);
        let others = match (behind, ends.len() - 1) {
            (0, 0) => String::new(),
            (0, more) if is_same && !first.culprits.is_empty() => {
                format!("; {more} other communicator{} for the same", several(more))
            }
            (0, more) if is_same => format!("; {more} other communicator{} likewise", several(more)),
            (0, more) => format!("; {more} other communicator{} for other ranks", several(more)),
            (behind, _) => for_these(behind),
        };
        let hash = &first.report.comm_hash;
        let hash = first.report.name.as_ref().map_or_else(String::new, |_| format!(" [{hash}]"));
        let never = first.report.verdict.kind == Some(Kind::NeverMatches);
        let is_mutual = culprits.is_empty() && first.report.verdict.kind == Some(Kind::NoCounterpart);
        // Of two ranks that differ nobody knows which is wrong.
        let are_divided = first.report.verdict.kind == Some(Kind::OtherOperation)
            && first.report.verdict.culprits.len() == first.report.n_ranks as usize;
        let what_for = if never {
            "can never be made".to_owned()
        } else if is_mutual {
            format!(
                "does not go on: {} wait for each other",
                by_process(&first.report.verdict.victims, &first.victims)
            )
        } else if are_divided {
            format!("does not go on: {whom} called operations that do not match")
        } else {
            format!("waits for {whom}")
        };
        // Where there is a name, the hash comes last.
        format!("{what}: communicator {} {what_for}{others}{hash}", first.name())
    };
    let kind = first.report.verdict.kind;
    let next = if let Some(update) = ends.iter().find_map(|one| one.report.verdict.update()) {
        Some(update)
    } else if is_circle {
        Some(circles::next_step(&ends))
    } else {
        // PIDs are those of one host.
        let host = first.culprits.first().map(|(host, _)| *host);
        let pids = first.culprits.iter().filter(|(on, _)| Some(*on) == host).map(|(_, pid)| *pid);
        let place = host.filter(|_| has_several_hosts(communicators)).map(|host| format!(" (on {host})"));
        kind.map(|kind| kind.next_step(pids) + &place.unwrap_or_default())
    };
    Some(JobVerdict { state, kind, sentence, next, communicators: hashes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::made::rank;

    fn communicator(hash: &str, state: State, culprits: &[u32], victims: &[u32]) -> CommunicatorReport {
        CommunicatorReport {
            comm_hash: hash.to_owned(),
            n_ranks: 4,
            ranks: (0..4).map(|number| rank(number, 1, Vec::new())).collect(),
            verdict: Verdict {
                state,
                culprits: culprits.to_vec(),
                victims: victims.to_vec(),
                ..Verdict::default()
            },
            ..CommunicatorReport::default()
        }
    }

    #[test]
    fn the_communicator_that_the_others_wait_for_comes_first() {
        // In A all wait for rank 1, which waits in B for rank 2.
        let job = over(
            &[
                communicator("A", State::Stuck, &[1], &[0, 2, 3]),
                communicator("B", State::Stuck, &[3], &[1]),
                communicator("C", State::Healthy, &[], &[]),
            ],
            &[],
        )
        .unwrap();
        // Rank 3 waits in A in turn.
        assert!(job.sentence.contains("in a circle"), "{}", job.sentence);
        let job = over(
            &[
                communicator("A", State::Stuck, &[1], &[0, 2]),
                communicator("B", State::Stuck, &[3], &[1]),
                communicator("C", State::Healthy, &[], &[]),
            ],
            &[],
        )
        .unwrap();
        assert_eq!((job.state, &*job.communicators), (State::Stuck, &["B".to_owned()][..]));
        assert!(job.sentence.contains("B waits for rank 3 (process 103)"), "{}", job.sentence);
        assert!(job.sentence.contains("1 other communicator"), "{}", job.sentence);
    }

    #[test]
    fn what_only_gpus_tell_comes_after_what_counters_tell() {
        let of_kind = |hash, kind, culprit| {
            let mut one = communicator(hash, State::Stuck, &[culprit], &[0]);
            one.verdict.kind = Some(kind);
            one
        };
        let job = over(&[of_kind("A", Kind::GpuIdle, 2), of_kind("B", Kind::NotJoined, 1)], &[]).unwrap();
        assert_eq!(
            (job.kind, &*job.communicators),
            (Some(Kind::NotJoined), &["B".to_owned(), "A".to_owned()][..])
        );
    }

    #[test]
    fn ranks_of_which_each_differs_are_not_waited_for() {
        let mut one = communicator("A", State::Stuck, &[0, 1, 2, 3], &[]);
        one.verdict.kind = Some(Kind::OtherOperation);
        let said = over(std::slice::from_ref(&one), &[]).unwrap().sentence;
        assert!(said.contains("A does not go on: ranks 0, 1, 2, 3 (process"), "{said}");
        assert!(said.ends_with("called operations that do not match"), "{said}");
        one.verdict.culprits = vec![3];
        let said = over(std::slice::from_ref(&one), &[]).unwrap().sentence;
        assert!(said.contains("waits for rank 3"), "{said}");
    }

    #[test]
    fn a_job_that_waits_for_nobody_says_so() {
        assert_eq!(over(&[], &[]), None);
        let job = over(&[communicator("A", State::Healthy, &[], &[])], &[]).unwrap();
        assert_eq!((job.state, job.communicators.len()), (State::Healthy, 0));
    }

    #[test]
    fn the_first_line_says_what_one_acts_on() {
        let mut one = communicator("0xab", State::Stuck, &[1], &[0]);
        one.name = Some("tp".to_owned());
        for rank in &mut one.ranks {
            rank.nvml_dev = Some(rank.rank + 4);
        }
        let process = |job_rank| ProcessReport { pid: 101, job_rank, ..ProcessReport::default() };
        let said = |one: &CommunicatorReport, job_rank| {
            over(std::slice::from_ref(one), &[process(job_rank)]).unwrap().sentence
        };
        let expected =
            "stuck: communicator \"tp\" waits for rank 1 (rank 3 of the job: process 101, GPU 5) [0xab]";
        assert_eq!(said(&one, Some(3)), expected);
        let expected = "stuck: communicator \"tp\" waits for rank 1 (process 101, GPU 5) [0xab]";
        assert_eq!(said(&one, Some(1)), expected);
        one.ranks[0].host = "b".to_owned();
        one.name = None;
        assert_eq!(said(&one, None), "stuck: communicator 0xab waits for rank 1 (process 101 on , GPU 5)");
        one.ranks[1].host = "c".to_owned();
        one.verdict.kind = Some(Kind::NotJoined);
        let next = over(std::slice::from_ref(&one), &[]).unwrap().next.unwrap();
        assert_eq!(next, "see where it is: ncclflow dump --stacks -p 101 (on c)");
        one.verdict.culprits = vec![1, 2];
        let job = over(std::slice::from_ref(&one), &[]).unwrap();
        assert_eq!(job.next.unwrap(), "see where it is: ncclflow dump --stacks -p 102 (on )");
        assert!(job.sentence.contains("ranks 1, 2 (processes 102 on , 101 on c)"), "{}", job.sentence);
        // Nobody is waited for in either.
        let empty = [communicator("A", State::Stuck, &[], &[0]), communicator("B", State::Stuck, &[], &[1])];
        let sentence = over(&empty, &[]).unwrap().sentence;
        assert!(!sentence.contains("for the same") && sentence.contains("likewise"), "{sentence}");
    }
}
