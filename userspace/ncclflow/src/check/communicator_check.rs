//! `ncclflow check`: all of it, over the folders of one or several hosts.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use anyhow::Result;
use serde::Serialize;

use super::{
    attribution::{Attribution, TimedMessage},
    collectives::{Collectives, name_ranks},
    p2p::PointToPoint,
    parts::parts,
    room::Room,
    row_source::{Gather, ReadingProgress, TakeRows, read_rows},
    verdict::{self, Culprit, RankWaits, Reason, Verdict},
};
use flow::schema::{ClockReport, MessageRow, OpRow, Outcome};
use nccl_library::nccl::Direction;

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
    /// Ops whose messages did not end before the session did.
    Unfinished,
    /// A rank, or a link, that the others wait for.
    Slowest,
    /// Two files speak of one rank.
    TwoRecordings,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub kind: FindingKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    pub ranks: Vec<i32>,
    pub text: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommunicatorCheck {
    /// The windows that it was checked in, if a folder with windows was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// Its folder: `commHash`, and a number if there are several of that hash.
    pub communicator: String,
    pub n_ranks: i32,
    pub ranks: Vec<i32>,
    /// Collectives of the rank that has most.
    pub collectives: u64,
    /// Ops of all ranks and channels by what became of their messages, where they were measured.
    pub measured: BTreeMap<Outcome, u64>,
    pub findings: Vec<Finding>,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    pub consistent: bool,
    pub recordings: Vec<PathBuf>,
    pub communicators: Vec<CommunicatorCheck>,
    /// What could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Compares what these folders have. They are read by as many threads as there are processors.
///
/// # Errors
/// If a folder has no recording and no files of lines, or cannot be read.
pub fn check(dirs: &[PathBuf], progress: ReadingProgress<'_>) -> Result<CheckReport> {
    let (mut communicators, mut notes) = (Vec::new(), Vec::new());
    for part in parts(dirs)? {
        let (fleet, said) = read_rows(&part, Fleet::default(), &mut *progress)?;
        notes.extend(said);
        fleet.checked(part.windows.as_deref(), &mut communicators, &mut notes);
    }
    Ok(CheckReport::new(dirs.to_vec(), communicators, notes))
}

impl CheckReport {
    pub(crate) fn new(
        recordings: Vec<PathBuf>,
        communicators: Vec<CommunicatorCheck>,
        notes: Vec<String>,
    ) -> Self {
        let consistent = communicators.iter().all(|communicator| communicator.findings.is_empty());
        Self { consistent, recordings, communicators, notes }
    }
}

/// The communicators of all folders.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    communicators: BTreeMap<String, CommunicatorRows>,
    room: Room,
}

impl Fleet {
    /// Everything has come.
    pub(super) fn checked(
        self,
        window: Option<&str>,
        checks: &mut Vec<CommunicatorCheck>,
        notes: &mut Vec<String>,
    ) {
        for (name, rows) in self.communicators {
            notes.extend(rows.not_compared(&name));
            checks.push(CommunicatorCheck { window: window.map(str::to_owned), ..rows.checked(name) });
        }
    }
}

impl Gather for Fleet {
    type Folder = Folder;

    fn folder(&self, clock: Option<ClockReport>) -> Folder {
        let earlier = self.communicators.iter().map(|(name, rows)| (name.clone(), rows.seen.clone()));
        Folder {
            communicators: BTreeMap::new(),
            ranks: Vec::new(),
            earlier: earlier.collect(),
            clock,
            room: Room::default(),
        }
    }

    fn add(&mut self, mut folder: Folder) -> bool {
        let is_twice = |(name, rows): (&String, &CommunicatorRows)| {
            self.communicators.get(name).is_some_and(|known| !known.seen.is_disjoint(&rows.seen))
        };
        if folder.communicators.iter().any(is_twice) {
            return false;
        }
        folder.end_ranks();
        for (name, rows) in folder.communicators {
            self.communicators.entry(name).or_default().append(rows, &mut self.room);
        }
        true
    }
}

/// Takes the rows of a folder.
#[derive(Debug)]
pub(super) struct Folder {
    communicators: BTreeMap<String, CommunicatorRows>,
    ranks: Vec<RankRows>,
    /// Ranks that folders before it have.
    earlier: BTreeMap<String, BTreeSet<i32>>,
    clock: Option<ClockReport>,
    room: Room,
}

#[derive(Debug, Default)]
struct CommunicatorRows {
    collectives: Collectives,
    p2p: PointToPoint,
    measured: BTreeMap<Outcome, u64>,
    findings: Vec<Finding>,
    waits: BTreeMap<i32, RankWaits>,
    messages: u64,
    messages_not_judged: u64,
    /// Ranks that a folder has.
    seen: BTreeSet<i32>,
}

/// What is gathered of a rank while its folder is read.
#[derive(Debug)]
struct RankRows {
    communicator: String,
    rank: i32,
    offset: u64,
    ended: Option<u64>,
    attribution: Attribution,
    /// How long its messages were in the network, by peer.
    in_network: BTreeMap<i32, u64>,
    /// Messages of the op that came last.
    op: Vec<TimedMessage>,
}

impl TakeRows for Folder {
    fn rank(&mut self, communicator: &str, rank: i32) -> Option<usize> {
        let rows = self.communicators.entry(communicator.to_owned()).or_default();
        let is_known = self.earlier.get(communicator).is_some_and(|earlier| earlier.contains(&rank));
        if is_known || !rows.seen.insert(rank) {
            let text = format!("rank {rank} is in two of the folders: only the first counts");
            let kind = FindingKind::TwoRecordings;
            rows.findings.push(Finding { kind, seq: None, ranks: vec![rank], text });
            return None;
        }
        let clock = self.clock.as_ref();
        let offset = clock.map_or(0, |clock| clock.offset_ns);
        let ended = clock.and_then(|clock| clock.ended_monotonic_ns);
        rows.collectives.rank(rank, ended, offset);
        rows.p2p.rank(rank, clock.map(|clock| clock.started_monotonic_ns), ended, offset);
        self.ranks.push(RankRows {
            communicator: communicator.to_owned(),
            rank,
            offset,
            ended,
            attribution: Attribution::default(),
            in_network: BTreeMap::new(),
            op: Vec::new(),
        });
        Some(self.ranks.len() - 1)
    }

    fn op(&mut self, rank: usize, row: &OpRow) {
        let Some(rank) = self.ranks.get_mut(rank) else { return };
        let Some(rows) = self.communicators.get_mut(&rank.communicator) else { return };
        rows.collectives.add(row, &mut self.room);
        rows.p2p.add(row, rank.offset, &mut self.room);
        if let Some(outcome) = row.measured {
            *rows.measured.entry(outcome).or_default() += 1;
        }
    }

    /// Messages of which nothing was seen tell nothing of waits.
    fn wants_messages(&self, _rank: usize, row: &OpRow) -> bool {
        row.peers.iter().any(|peer| peer.messages_measured.is_some())
    }

    fn message(&mut self, rank: usize, row: &MessageRow) {
        let Some(rank) = self.ranks.get_mut(rank) else { return };
        if let (Direction::Send, Some(wait)) = (row.op, row.wait_network_ns.get()) {
            *rank.in_network.entry(row.peer).or_default() += wait;
        }
        if rank.op.first().is_some_and(|first| (first.seq, first.channel) != (row.seq, row.channel)) {
            rank.end_op();
        }
        rank.op.push(TimedMessage::of(row));
    }
}

impl Folder {
    /// All rows of the folder's ranks have come.
    fn end_ranks(&mut self) {
        for mut rank in self.ranks.drain(..) {
            rank.end_op();
            let Some(rows) = self.communicators.get_mut(&rank.communicator) else { continue };
            rows.messages += rank.attribution.messages;
            rows.messages_not_judged += rank.attribution.not_judged;
            rows.waits.insert(rank.rank, RankWaits::new(rank.rank, &rank.attribution, rank.in_network));
        }
    }
}

impl RankRows {
    fn end_op(&mut self) {
        self.attribution.add_op(&self.op, self.ended);
        self.op.clear();
    }
}

impl CommunicatorRows {
    /// Adds what a further folder has of it: other ranks.
    fn append(&mut self, more: Self, room: &mut Room) {
        let Self { collectives, p2p, measured, findings, waits, messages, messages_not_judged, seen } = more;
        self.collectives.append(collectives, room);
        self.p2p.append(p2p, room);
        for (outcome, ops) in measured {
            *self.measured.entry(outcome).or_default() += ops;
        }
        self.findings.extend(findings);
        self.waits.extend(waits);
        self.messages += messages;
        self.messages_not_judged += messages_not_judged;
        self.seen.extend(seen);
    }

    /// What there was no memory to compare.
    fn not_compared(&self, communicator: &str) -> Vec<String> {
        let why = "more than can be kept in memory; recordings of shorter windows can be checked whole";
        let collectives = self
            .collectives
            .not_compared_from()
            .map(|from| format!("{communicator}: collectives from {from} on were not compared: {why}"));
        let pairs = self
            .p2p
            .is_cut()
            .then(|| format!("{communicator}: not all sends and receives were compared: {why}"));
        collectives.into_iter().chain(pairs).collect()
    }

    fn checked(self, communicator: String) -> CommunicatorCheck {
        let Self { collectives, p2p, measured, mut findings, waits, messages, messages_not_judged, seen: _ } =
            self;
        let ranks: Vec<RankWaits> = waits.into_values().collect();
        let culprit = verdict::culprit(&ranks);
        let verdict = Verdict { ranks, culprit, messages, messages_not_judged };
        collectives.check(&mut findings);
        p2p.check(&mut findings);
        let otherwise = (FindingKind::MeasuredOtherwise, "with messages of another size than was planned");
        let unfinished = (FindingKind::Unfinished, "with messages on their way when the recording ended");
        for (outcome, (kind, text)) in [(Outcome::OtherBytes, otherwise), (Outcome::SessionEnded, unfinished)]
        {
            if let Some(ops) = measured.get(&outcome) {
                let text = format!("{ops} ops (each channel counts) {text}");
                findings.push(Finding { kind, seq: None, ranks: Vec::new(), text });
            }
        }
        findings.extend(verdict.culprit.as_ref().map(slowest));
        CommunicatorCheck {
            window: None,
            communicator,
            n_ranks: collectives.n_ranks,
            ranks: collectives.ranks(),
            collectives: collectives.ops(),
            measured,
            findings,
            verdict,
        }
    }
}

fn slowest(culprit: &Culprit) -> Finding {
    let Culprit { rank, peer, reason, waited_ns, victims } = culprit;
    let why = match reason {
        Reason::OwnGpu => "its GPU had all that it needed, and did not go on".to_owned(),
        Reason::Late => "it waits for nobody: it comes late, or is busy outside of NCCL".to_owned(),
        Reason::NotRecorded => "it was not recorded".to_owned(),
        Reason::Link => {
            format!("its messages to rank {} are longest in the network", peer.unwrap_or(-1))
        }
    };
    let who = if victims.is_empty() { "nobody".to_owned() } else { name_ranks(victims) };
    let text = format!("{who} wait for rank {rank} ({} ms of messages): {why}", waited_ns / 1_000_000);
    let ranks = std::iter::once(*rank).chain(*peer).collect();
    Finding { kind: FindingKind::Slowest, seq: None, ranks, text }
}
