//! `ncclflow check`: the whole check, over the folders of one or several hosts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Result, bail};
use serde::Serialize;

use super::{
    call_lines::{Lines, Wanted},
    call_marks::Marks,
    collectives::{Collectives, Difference},
    first_difference::{self, FirstDifference},
    folder_rows::{FolderRows, Owners},
    memory_limit::Room,
    p2p::PointToPoint,
    parts::parts,
    row_source::{FolderFacts, Gather, ReadingProgress, read_rows},
};
use crate::{
    not_recorded::EMPTY,
    slow::{self, Gathered, RankWaits, Slow},
    sources::{Jobs, sources},
};
use flow::schema::Outcome;
use flow::text::name_ranks;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Ranks run different operations, or with different arguments, under one number.
    CollectiveMismatch,
    /// Ranks run the same operations in another order.
    OrderMismatch,
    /// A rank lacks an operation and has later ones.
    MissingOp,
    /// A rank has not joined an operation that others are in.
    MissingJoin,
    UnmatchedSend,
    UnmatchedRecv,
    /// A send and its receive have different sizes.
    SizeMismatch,
    /// Messages had another size than was planned.
    MeasuredOtherwise,
    /// Ops whose messages did not end before the session did, in a communicator in which nothing moved any
    /// more.
    Unfinished,
}

/// What is said where there is nothing to compare.
pub(crate) const NOTHING: &str = "nothing to check: no operation or call of a communicator was recorded";

/// Importance of who holds a job back, among those of findings.
pub(crate) const SLOWNESS: u8 = 3;

impl FindingKind {
    /// Returns the importance of a finding, 0 the most: differences come before slowness, and that before cut
    /// recordings.
    pub(crate) fn importance(self) -> u8 {
        match self {
            Self::CollectiveMismatch | Self::OrderMismatch => 0,
            Self::MissingJoin | Self::MissingOp => 1,
            Self::UnmatchedSend | Self::UnmatchedRecv | Self::SizeMismatch => 2,
            Self::MeasuredOtherwise => SLOWNESS + 1,
            Self::Unfinished => SLOWNESS + 2,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub kind: FindingKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    pub ranks: Vec<i32>,
    pub text: String,
}

/// Location of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    pub host: String,
    /// Process ID as ncclflow saw it there.
    pub pid: u32,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommunicatorCheck {
    /// The windows that it was checked in, if a folder with windows was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// Name of its job, as of `ps`: that of Slurm, Kubernetes or the launcher, or program and PID of its first
    /// process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Name of its folder: `commHash`, and a number if there are several of that hash.
    pub communicator: String,
    pub n_ranks: i32,
    pub ranks: Vec<i32>,
    /// Places of ranks, where a row has them.
    pub places: BTreeMap<i32, Place>,
    /// Collectives of the rank that has most.
    pub collectives: u64,
    /// Launches without proxy ops (symmetric memory, copy engines, one-sided calls) of the rank that has
    /// most: they are compared with nothing.
    pub launches: u64,
    /// Ops of all ranks and channels by the outcome of their messages, where these were measured.
    pub measured: BTreeMap<Outcome, u64>,
    pub findings: Vec<Finding>,
    /// The first collective at which ranks differ, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_difference: Option<FirstDifference>,
    pub verdict: Verdict,
}

/// What the ranks of a communicator waited for.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    pub ranks: Vec<RankWaits>,
    /// Messages that were judged, and those of patterns that cannot be.
    pub messages: u64,
    pub messages_not_judged: u64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    pub consistent: bool,
    pub recordings: Vec<PathBuf>,
    /// Who holds the job back; where there are several jobs, or windows, of the one that is held back most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow: Option<Slow>,
    /// The verdict on each job.
    pub jobs: Vec<JobCheck>,
    /// Who holds each of several jobs back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow_jobs: Vec<Slow>,
    pub communicators: Vec<CommunicatorCheck>,
    /// Notes on what could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The verdict on a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobCheck {
    /// `None`: of communicators whose processes no job is known of.
    pub job: Option<String>,
    pub consistent: bool,
    /// The verdict in one sentence.
    pub verdict: String,
}

/// Compares the recordings in these folders. They are read by as many threads as there are processors.
///
/// # Errors
/// If a folder has no recording, or cannot be read.
pub fn check(dirs: &[PathBuf], progress: ReadingProgress<'_>) -> Result<CheckReport> {
    check_jobs(dirs, &[], progress)
}

/// Compares the recordings of these jobs; without a name, of all.
///
/// # Errors
/// If a folder has no recording, or cannot be read, or none has one of these jobs, or anything at all.
pub fn check_jobs(dirs: &[PathBuf], jobs: &[String], progress: ReadingProgress<'_>) -> Result<CheckReport> {
    let (mut communicators, mut slow, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for part in parts(dirs)? {
        let fleet = Fleet { chosen: jobs.to_vec(), ..Fleet::default() };
        let (fleet, said) = read_rows(&part, fleet, &mut *progress)?;
        notes.extend(said);
        let mut checked = fleet.checked(part.windows.as_deref(), &mut notes);
        if !checked.lines.is_empty() {
            (checked.lines, _) = read_rows(&part, checked.lines, &mut *progress)?;
            if checked.lines.is_incomplete() {
                (checked.lines, _) = read_rows(&part, checked.lines.whole(), &mut *progress)?;
            }
        }
        slow.append(&mut checked.slow);
        communicators.extend(checked.complete());
    }
    if communicators.is_empty() {
        Jobs::of(&sources(dirs)?).ensure_has(jobs)?;
        // What has nothing is not consistent.
        notes.retain(|note| note.starts_with(EMPTY));
        bail!(if notes.is_empty() { NOTHING.to_owned() } else { notes.join("; ") });
    }
    Ok(CheckReport::new(dirs.to_vec(), communicators, slow, notes))
}

impl CheckReport {
    pub fn new(
        recordings: Vec<PathBuf>,
        communicators: Vec<CommunicatorCheck>,
        mut slow_jobs: Vec<Slow>,
        mut notes: Vec<String>,
    ) -> Self {
        // Windows have the same ones.
        let mut said = BTreeSet::new();
        notes.retain(|note| said.insert(note.clone()));
        slow_jobs.sort_by(|one, other| other.weight().total_cmp(&one.weight()));
        let agree = communicators.iter().all(|communicator| communicator.findings.is_empty());
        let consistent = agree && slow_jobs.iter().all(|slow| slow.faults().next().is_none());
        let slow = slow_jobs.first().cloned();
        if slow_jobs.len() == 1 {
            slow_jobs.clear();
        }
        let mut report =
            Self { consistent, recordings, slow, jobs: Vec::new(), slow_jobs, communicators, notes };
        report.jobs = report.parts().map(|part| part.verdict()).collect();
        report
    }

    /// Returns what is known of each job, in the order of their names.
    pub(crate) fn parts(&self) -> impl Iterator<Item = JobPart<'_>> {
        let mut parts: BTreeMap<Option<&str>, JobPart<'_>> = BTreeMap::new();
        for check in &self.communicators {
            let job = check.job.as_deref();
            parts.entry(job).or_insert_with(|| JobPart::new(job)).communicators.push(check);
        }
        for slow in self.jobs() {
            let job = slow.job.as_deref();
            parts.entry(job).or_insert_with(|| JobPart::new(job)).slow.push(slow);
        }
        parts.into_values()
    }

    /// Returns the verdict on each job.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &Slow> {
        self.slow.iter().filter(|_| self.slow_jobs.is_empty()).chain(&self.slow_jobs)
    }
}

/// What is known of a job.
#[derive(Debug, Default)]
pub(crate) struct JobPart<'a> {
    pub(crate) job: Option<&'a str>,
    pub(crate) communicators: Vec<&'a CommunicatorCheck>,
    /// Who holds it back: several where there are windows, or groups of ranks that share nothing.
    pub(crate) slow: Vec<&'a Slow>,
}

impl<'a> JobPart<'a> {
    fn new(job: Option<&'a str>) -> Self {
        Self { job, ..Self::default() }
    }

    /// Returns the verdict on the job.
    pub(crate) fn verdict(&self) -> JobCheck {
        let agree = self.communicators.iter().all(|check| check.findings.is_empty());
        let consistent = agree && self.slow.iter().all(|slow| slow.faults().next().is_none());
        JobCheck { job: self.job.map(str::to_owned), consistent, verdict: self.headline() }
    }
}

/// The communicators of all folders.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    /// Jobs that are checked; none: all.
    chosen: Vec<String>,
    communicators: BTreeMap<String, CommunicatorRows>,
    /// Hosts whose clock is not known.
    without_clock: BTreeSet<String>,
    slow: Vec<Gathered>,
    /// Folders of the ranks.
    owners: Owners,
    /// Notes on ranks that several folders have.
    twice: Vec<String>,
    room: Room,
}

/// Communicators that were compared; where ranks differ, their source lines are still to be found.
#[derive(Debug, Default)]
pub(super) struct Checked {
    checks: Vec<(CommunicatorCheck, Option<Difference>)>,
    /// Lines that a second reading is to find.
    lines: Lines,
    /// Who holds each job back.
    pub(super) slow: Vec<Slow>,
}

impl Checked {
    /// Completes the checks by the lines that were found.
    pub(super) fn complete(self) -> impl Iterator<Item = CommunicatorCheck> {
        let Self { checks, lines, .. } = self;
        checks.into_iter().map(move |(check, difference)| {
            let first_difference =
                difference.map(|difference| FirstDifference::new(&check.communicator, difference, &lines));
            CommunicatorCheck { first_difference, ..check }
        })
    }
}

impl Fleet {
    /// Notes what cannot be judged, as the clocks of some hosts are not known.
    fn clocks_not_known(&self) -> Option<String> {
        let hosts: Vec<&str> = self.without_clock.iter().map(String::as_str).collect();
        (!hosts.is_empty()).then(|| {
            format!(
                "the clock of {} is not known (`session.json` of each host's recording has it), so \
                 ncclflow did not check whether ranks there missed a collective, a send or a receive",
                hosts.join(", ")
            )
        })
    }

    /// Compares all, when everything has come.
    pub(super) fn checked(self, window: Option<&str>, notes: &mut Vec<String>) -> Checked {
        let slow = slow::judge(&self.slow);
        let (mut checked, mut all_wanted) = (Checked { slow, ..Checked::default() }, HashMap::new());
        notes.extend(self.clocks_not_known());
        notes.extend(self.twice);
        for (name, mut rows) in self.communicators {
            notes.extend(rows.not_compared(&name));
            let (has_stacks, marks) = (rows.has_stacks, std::mem::take(&mut rows.marks));
            let (check, difference) = rows.checked(name, window);
            if let Some(difference) = difference.as_ref().filter(|_| has_stacks) {
                all_wanted.insert(check.communicator.clone(), Wanted::of(difference, &marks));
            }
            checked.checks.push((check, difference));
        }
        checked.lines = Lines::new(all_wanted);
        checked
    }
}

impl Gather for Fleet {
    type Folder = FolderRows;

    fn folder(&self, facts: FolderFacts) -> FolderRows {
        FolderRows::new(facts, self.owners.clone(), self.chosen.clone())
    }

    fn add(&mut self, mut folder: FolderRows) -> bool {
        let is_twice = |(name, rows): (&String, &CommunicatorRows)| {
            self.communicators.get(name).is_some_and(|known| known.collectives.has_any_of(&rows.collectives))
        };
        if folder.communicators.iter().any(is_twice) {
            return false;
        }
        folder.end_ranks();
        self.without_clock.append(&mut folder.without_clock);
        self.slow.push(std::mem::take(&mut folder.slow));
        slow::bound(&mut self.slow);
        self.twice.extend(folder.twice.notes(folder.path()));
        let path = Arc::clone(folder.path());
        for (name, rows) in folder.communicators {
            let ranks = rows.collectives.ranks().into_iter().map(|rank| (rank, Arc::clone(&path)));
            self.owners.entry(name.clone()).or_default().extend(ranks);
            self.communicators.entry(name).or_default().append(rows, &mut self.room);
        }
        true
    }
}

#[derive(Debug, Default)]
pub(super) struct CommunicatorRows {
    pub(super) collectives: Collectives,
    pub(super) p2p: PointToPoint,
    /// Places, outcomes, waits and findings until now.
    pub(super) check: CommunicatorCheck,
    /// Calls or ops name their call stacks.
    pub(super) has_stacks: bool,
    /// Ranks whose calls may be numbered otherwise than those of others.
    pub(super) uncertain: BTreeSet<i32>,
    /// Marks of ranks with recorded calls and stacks, with the offset from their clock to wall time.
    pub(super) marks: BTreeMap<i32, (u64, Marks)>,
}

impl CommunicatorRows {
    /// Adds the ranks of a further folder, none of them known yet.
    fn append(&mut self, more: Self, room: &mut Room) {
        self.marks.extend(more.marks);
        self.has_stacks |= more.has_stacks;
        self.uncertain.extend(more.uncertain);
        self.collectives.append(more.collectives, room);
        self.p2p.append(more.p2p, room);
        let (check, more) = (&mut self.check, more.check);
        check.job = check.job.take().or(more.job);
        for (outcome, ops) in more.measured {
            *check.measured.entry(outcome).or_default() += ops;
        }
        check.findings.extend(more.findings);
        check.places.extend(more.places);
        check.verdict.ranks.extend(more.verdict.ranks);
        check.verdict.messages += more.verdict.messages;
        check.verdict.messages_not_judged += more.verdict.messages_not_judged;
    }

    /// Notes what there was no memory to compare.
    fn not_compared(&self, communicator: &str) -> Vec<String> {
        let why = "they do not fit into memory; shorter windows can be compared completely";
        let collectives = self
            .collectives
            .not_compared_from
            .map(|from| format!("{communicator}: collectives from {from} on were not compared: {why}"));
        let pairs = self
            .p2p
            .is_cut()
            .then(|| format!("{communicator}: not all sends and receives were compared: {why}"));
        let uncertain: Vec<i32> = self.uncertain.iter().copied().collect();
        let uncertain = (!uncertain.is_empty()).then(|| {
            format!(
                "{communicator}: collectives were not compared, because their numbers are not certain: \
                 the calls of {} were not recorded from the communicator's beginning, and NCCL launched \
                 more than was called (CUDA graphs)",
                name_ranks(&uncertain)
            )
        });
        collectives.into_iter().chain(pairs).chain(uncertain).collect()
    }

    fn checked(self, communicator: String, window: Option<&str>) -> (CommunicatorCheck, Option<Difference>) {
        let Self { collectives, p2p, mut check, uncertain, .. } = self;
        check.verdict.ranks.sort_by_key(|waits| waits.rank);
        if uncertain.is_empty() {
            collectives.check(&mut check.findings);
        }
        let first = first_difference::first(&check.findings);
        let difference = first.and_then(|(number, absent)| collectives.at(number, &absent));
        p2p.check(&mut check.findings);
        let mut ops = |outcome, kind, text: &str| {
            if let Some(ops) = check.measured.get(&outcome) {
                let text = format!("{ops} operations × channels {text}");
                check.findings.push(Finding { kind, seq: None, ranks: Vec::new(), text });
            }
        };
        let otherwise = "had messages whose size is not the one that NCCL planned";
        ops(Outcome::OtherBytes, FindingKind::MeasuredOtherwise, otherwise);
        // The end of a recording cuts off what is under way.
        if collectives.stands() {
            let unfinished =
                "still had messages in flight when the recording ended, and nothing moved any more";
            ops(Outcome::SessionEnded, FindingKind::Unfinished, unfinished);
        }
        let check = CommunicatorCheck {
            window: window.map(str::to_owned),
            communicator,
            n_ranks: collectives.n_ranks,
            ranks: collectives.ranks(),
            collectives: collectives.ops(),
            launches: collectives.launches(),
            ..check
        };
        (check, difference)
    }
}
