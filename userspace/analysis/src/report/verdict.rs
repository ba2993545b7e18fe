//! The verdict in one sentence: the worst finding of `check`.

use flow::{schema::Outcome, text::counted};

use super::data::{FindingData, JobData, JobIterationsData, Level, SeriesData, VerdictData};
use crate::{
    check::{
        CheckReport, CommunicatorCheck, Finding, FindingKind, JobCheck, JobPart, NOTHING, SLOWNESS, by_name,
    },
    not_recorded::EMPTY,
    slow::{Kind, Slow, Stall},
};

/// Most findings on the page.
const MAX_FINDINGS: usize = 500;

fn level(kind: FindingKind) -> Level {
    match kind {
        FindingKind::Unfinished => Level::Open,
        _ => Level::Fault,
    }
}

/// Coverage of the recordings, which also bears on the verdict.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Number of ranks of all communicators, and of those that were recorded.
    pub(super) ranks: u64,
    pub(super) recorded: u64,
    pub(super) ops: u64,
    pub(super) calls: u64,
    /// Why there are neither ops nor calls.
    pub(super) why_empty: Option<String>,
    /// Set if records are missing.
    pub(super) has_losses: bool,
}

/// Most late launches that are marked on the timeline.
const MAX_STALLS: usize = 4096;

/// Returns the communicator that has the ranks of a job: its largest.
fn largest(report: &CheckReport, job: Option<&str>, comm: &dyn Fn(&str) -> Option<usize>) -> Option<usize> {
    let of_job = report.communicators.iter().filter(|check| check.job.as_deref() == job);
    of_job.max_by_key(|check| check.n_ranks).and_then(|check| comm(&check.communicator))
}

/// Returns late launches of the ranks that hold jobs back, the longest if there are too many.
fn stalls(
    report: &CheckReport,
    comm: &dyn Fn(&str) -> Option<usize>,
    t0_ns: u64,
) -> Vec<(usize, i32, u64, u64)> {
    let mut stalls = Vec::new();
    for slow in report.jobs() {
        let Some(number) = largest(report, slow.job.as_deref(), comm) else { continue };
        let of_stall =
            |stall: &Stall| (number, stall.rank, stall.at_ns.saturating_sub(t0_ns) / 1000, stall.ns / 1000);
        stalls.extend(slow.stalls.iter().map(of_stall));
    }
    stalls.sort_by_key(|(.., us)| std::cmp::Reverse(*us));
    stalls.truncate(MAX_STALLS);
    stalls
}

/// Makes the verdict. `comm` returns the number on the page of the communicator with a name.
pub(super) fn verdict(
    report: &CheckReport,
    seen: &Seen,
    comm: &dyn Fn(&str) -> Option<usize>,
    t0_ns: u64,
) -> VerdictData {
    let checks = report.communicators.iter();
    let mut found: Vec<(&CommunicatorCheck, &Finding)> =
        checks.flat_map(|check| check.findings.iter().map(move |finding| (check, finding))).collect();
    found.sort_by_key(|(_, finding)| finding.kind.importance());
    let several = by_name(&report.communicators).len() > 1;
    let first = found.first().filter(|(_, finding)| level(finding.kind) != Level::Open);
    // Of several jobs the sentence names the one that it is about.
    let of_job = |job: &Option<String>| match job {
        Some(job) if report.jobs.len() > 1 => format!("Job {job}: "),
        _ => String::new(),
    };
    let slow = report.slow.as_ref().and_then(|slow| Some((slow.faults().next()?, &slow.job)));
    let is_slow = first.is_none_or(|(_, finding)| finding.kind.importance() > SLOWNESS);
    let (level, sentence, ranks) = match (first, slow.filter(|_| is_slow)) {
        (_, Some((cause, job))) => {
            // Ranks of the job are those of its largest communicator.
            let number = largest(report, job.as_deref(), comm);
            let ranks = cause.ranks.iter().filter_map(|rank| Some((number?, *rank))).collect();
            (Level::Slow, of_job(job) + &capitalized(&cause.text) + ".", ranks)
        }
        (Some((check, finding)), None) => {
            let mut text = capitalized(&finding.text);
            if several {
                text = format!("{text}, in communicator {}", check.communicator);
            }
            let number = comm(&check.communicator);
            let ranks = finding.ranks.iter().filter_map(|rank| Some((number?, *rank))).collect();
            (level(finding.kind), of_job(&check.job) + &text + ".", ranks)
        }
        (None, None) => {
            let (level, mut text) = nothing_found(report, seen);
            if !found.is_empty() {
                text.push_str(" But not everything is known: see below.");
            }
            (if found.is_empty() { level } else { Level::Open }, text, Vec::new())
        }
    };
    let mut notes = report.notes.clone();
    for line in report.jobs().flat_map(Slow::lines_not_seen) {
        if !notes.contains(&line) {
            notes.push(line);
        }
    }
    let more = found.len().saturating_sub(MAX_FINDINGS);
    if more > 0 {
        notes.push(format!("{more} more findings are not listed here: `ncclflow check` has them"));
    }
    let finding = |(check, finding): &(&CommunicatorCheck, &Finding)| FindingData {
        comm: comm(&check.communicator),
        window: check.window.clone(),
        kind: serde_json::to_value(finding.kind).unwrap_or_default(),
        seq: finding.seq,
        text: capitalized(&finding.text) + ".",
        ranks: finding.ranks.clone(),
    };
    let findings = found.iter().take(MAX_FINDINGS).map(finding).collect();
    let stalls = stalls(report, comm, t0_ns);
    VerdictData { level, sentence, ranks, stalls, findings, notes }
}

impl JobData {
    /// `comm`: as of [`verdict`].
    pub(super) fn of(part: &JobPart<'_>, comm: &dyn Fn(&str) -> Option<usize>, t0_ns: u64) -> Self {
        let JobCheck { job, consistent, verdict } = part.verdict();
        let mut comms: Vec<usize> =
            part.communicators.iter().filter_map(|check| comm(&check.communicator)).collect();
        comms.sort_unstable();
        comms.dedup();
        let iterations = part.slow.iter().map(|slow| JobIterationsData {
            count: slow.iterations,
            typical_ms: slow.iteration_ms,
            marked: slow.faults().flat_map(|cause| cause.ranks.clone()).collect(),
            parts: slow.iteration_parts.clone(),
            series: SeriesData::of_lengths(&slow.lengths, t0_ns),
        });
        Self {
            name: job,
            consistent,
            sentence: capitalized(&verdict) + ".",
            comms,
            iterations: iterations.collect(),
        }
    }
}

fn nothing_found(report: &CheckReport, seen: &Seen) -> (Level, String) {
    let Seen { ranks, recorded, ops, calls, why_empty, has_losses } = seen;
    let comms = by_name(&report.communicators).len();
    if comms == 0 {
        let why = match why_empty {
            Some(why) if ops + calls == 0 => format!("{EMPTY}: {why}"),
            _ => NOTHING.to_owned(),
        };
        return (Level::Unknown, format!("No verdict: {why}."));
    }
    let collectives: u64 = report.communicators.iter().map(|check| check.collectives).sum();
    let slow = report.slow.as_ref();
    let is_known = slow.is_some_and(|slow| slow.first.kind != Kind::Unknown);
    let is_cut = report.communicators.iter().any(|check| check.measured.contains_key(&Outcome::RecordsLost));
    let waits = slow.map_or_else(String::new, |slow| format!("; {}", slow.summary()));
    let whole = recorded >= ranks;
    let who = if whole {
        format!("all {recorded} ranks")
    } else {
        format!("the {recorded} of {ranks} ranks that were recorded")
    };
    let lost = if *has_losses || is_cut { "; some records were lost" } else { "" };
    let level = if whole && is_known && lost.is_empty() && report.notes.is_empty() {
        Level::Good
    } else {
        Level::Open
    };
    let what = match comms {
        1 => counted(collectives, "collective"),
        _ => format!("{} of {comms} communicators", counted(collectives, "collective")),
    };
    (level, format!("No fault was found: {who} agree on {what}{waits}{lost}."))
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(communicators: Vec<CommunicatorCheck>, seen: &Seen) -> String {
        let report = CheckReport::new(Vec::new(), communicators, Vec::new(), Vec::new());
        verdict(&report, seen, &|_| None, 0).sentence
    }

    fn check(window: Option<&str>) -> CommunicatorCheck {
        let window = window.map(str::to_owned);
        let communicator = "0xab".to_owned();
        CommunicatorCheck { window, communicator, ranks: vec![0, 1], collectives: 5, ..Default::default() }
    }

    /// A communicator in two windows is one; calls were compared as ops are.
    #[test]
    fn a_communicator_counts_once_also_by_its_calls() {
        let seen = Seen { ranks: 2, recorded: 2, calls: 20, ..Seen::default() };
        let windows = vec![check(Some("1")), check(Some("2"))];
        assert_eq!(sentence(windows, &seen), "No fault was found: all 2 ranks agree on 10 collectives.");
    }

    #[test]
    fn an_empty_recording_is_said_to_be_empty_and_why() {
        let seen = Seen { why_empty: Some("nothing was called meanwhile".to_owned()), ..Seen::default() };
        let expected = "No verdict: nothing of NCCL was recorded: nothing was called meanwhile.";
        assert_eq!(sentence(Vec::new(), &seen), expected);
        let calls = Seen { calls: 3, ..seen };
        assert_eq!(sentence(Vec::new(), &calls), format!("No verdict: {NOTHING}."));
    }
}
