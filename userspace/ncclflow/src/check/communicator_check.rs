//! `ncclflow check`: all of it, over the folders of one or several hosts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map::Entry},
    path::PathBuf,
};

use anyhow::Result;
use serde::Serialize;

use super::{
    attribution::{Attribution, TimedMessage},
    call_lines::{Lines, Wanted},
    call_marks::Marks,
    collectives::{At, Collectives, name_ranks},
    first_difference::{self, FirstDifference},
    p2p::PointToPoint,
    parts::parts,
    rank_reader::FolderClock,
    room::Room,
    row_source::{Gather, ReadingProgress, TakeRows, read_rows},
    verdict::{self, Culprit, RankWaits, Reason, Verdict},
};
use crate::{export::CallNumbers, flight_recorder::Function, text::spaced_seconds};
use flow::schema::{ApiCallRow, MessageRow, OpRow, Outcome};
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

/// Where a rank is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    pub host: String,
    /// As ncclflow saw it there.
    pub pid: u32,
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
    /// Those of which a row says it.
    pub places: BTreeMap<i32, Place>,
    /// Collectives of the rank that has most.
    pub collectives: u64,
    /// Ops of all ranks and channels by what became of their messages, where they were measured.
    pub measured: BTreeMap<Outcome, u64>,
    pub findings: Vec<Finding>,
    /// The first collective at which ranks differ, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_difference: Option<FirstDifference>,
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
        let mut checked = fleet.checked(part.windows.as_deref(), &mut notes);
        if !checked.lines.is_empty() {
            (checked.lines, _) = read_rows(&part, checked.lines, &mut *progress)?;
            if checked.lines.is_incomplete() {
                (checked.lines, _) = read_rows(&part, checked.lines.whole(), &mut *progress)?;
            }
        }
        communicators.extend(checked.complete());
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

/// The first collective at which ranks differ, before it is known where in their programs they were.
#[derive(Debug)]
struct Difference {
    number: u64,
    at: At,
    /// When the collective before it was first seen.
    before_seen_ns: Option<u64>,
}

impl Difference {
    /// What a second reading is to find of it.
    fn wanted(&self, marks: &BTreeMap<i32, (u64, Marks)>) -> Wanted {
        let ranks = |(call, ranks): &(Option<_>, Vec<i32>)| {
            let has_called = call.is_some();
            ranks.iter().map(move |rank| (*rank, has_called)).collect::<Vec<_>>()
        };
        let mut wanted = Wanted {
            number: self.number,
            first_seen_ns: self.at.first_seen_ns,
            before_seen_ns: self.before_seen_ns,
            ranks: self.at.groups.iter().flat_map(ranks).collect(),
            marks: BTreeMap::new(),
        };
        for (rank, (offset, marks)) in marks {
            wanted.mark(*rank, marks, *offset);
        }
        wanted
    }
}

/// The communicators of all folders.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    communicators: BTreeMap<String, CommunicatorRows>,
    /// Hosts of which the clock is not known.
    without_clock: BTreeSet<String>,
    room: Room,
}

/// Communicators that were compared; where ranks differ, the lines that they were at are not known yet.
#[derive(Debug, Default)]
pub(super) struct Checked {
    checks: Vec<(CommunicatorCheck, Option<Difference>)>,
    /// What a second reading is to find.
    lines: Lines,
}

impl Checked {
    /// With the lines that were found.
    pub(super) fn complete(self) -> impl Iterator<Item = CommunicatorCheck> {
        let Self { checks, lines } = self;
        checks.into_iter().map(move |(check, difference)| {
            let first_difference = difference.map(|Difference { number, at, .. }| {
                FirstDifference::new(&check.communicator, number, at, &lines)
            });
            CommunicatorCheck { first_difference, ..check }
        })
    }
}

impl Fleet {
    /// What cannot be judged, as the clocks of some hosts are not known.
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

    /// Everything has come.
    pub(super) fn checked(self, window: Option<&str>, notes: &mut Vec<String>) -> Checked {
        let (mut checked, mut all_wanted) = (Checked::default(), HashMap::new());
        notes.extend(self.clocks_not_known());
        for (name, mut rows) in self.communicators {
            notes.extend(rows.not_compared(&name));
            let (has_stacks, marks) = (rows.has_stacks, std::mem::take(&mut rows.marks));
            let (check, difference) = rows.checked(name);
            if let Some(difference) = difference.as_ref().filter(|_| has_stacks) {
                all_wanted.insert(check.communicator.clone(), difference.wanted(&marks));
            }
            checked
                .checks
                .push((CommunicatorCheck { window: window.map(str::to_owned), ..check }, difference));
        }
        checked.lines = Lines::new(all_wanted);
        checked
    }
}

impl Gather for Fleet {
    type Folder = Folder;

    fn folder(&self, clock: Option<FolderClock>) -> Folder {
        let earlier = self.communicators.iter().map(|(name, rows)| (name.clone(), rows.seen.clone()));
        Folder {
            communicators: BTreeMap::new(),
            ranks: Vec::new(),
            earlier: earlier.collect(),
            clock,
            without_clock: BTreeSet::new(),
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
        self.without_clock.append(&mut folder.without_clock);
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
    clock: Option<FolderClock>,
    /// Hosts of which the clock is not known.
    without_clock: BTreeSet<String>,
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
    /// Calls or ops say which call stack they are of.
    has_stacks: bool,
    /// Ranks whose calls may be numbered otherwise than those of others.
    uncertain: BTreeSet<i32>,
    places: BTreeMap<i32, Place>,
    /// Of ranks of which calls with stacks were recorded, with the way from their clock to wall time.
    marks: BTreeMap<i32, (u64, Marks)>,
}

/// What is gathered of a rank while its folder is read.
#[derive(Debug)]
struct RankRows {
    communicator: String,
    rank: i32,
    /// From its clock to wall time; nothing: it is not known.
    offset: Option<u64>,
    ended: Option<u64>,
    attribution: Attribution,
    /// How long its messages were in the network, by peer.
    in_network: BTreeMap<i32, u64>,
    /// Messages of the op that came last.
    op: Vec<TimedMessage>,
    /// Of its calls, where ops were not recorded.
    numbers: CallNumbers,
    marks: Marks,
}

impl TakeRows for Folder {
    fn rank(&mut self, communicator: &str, rank: i32) -> Option<usize> {
        let rows = self.communicators.entry(communicator.to_owned()).or_default();
        let is_known = self.earlier.get(communicator).is_some_and(|earlier| earlier.contains(&rank));
        if is_known || !rows.seen.insert(rank) {
            let text = format!("rank {rank} is in two of the folders; ncclflow uses the first only");
            let kind = FindingKind::TwoRecordings;
            rows.findings.push(Finding { kind, seq: None, ranks: vec![rank], text });
            return None;
        }
        let clock = self.clock.as_ref().map(|known| &known.clock);
        let offset = clock.map(|clock| clock.offset_ns);
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
            numbers: CallNumbers::default(),
            marks: Marks::default(),
        });
        Some(self.ranks.len() - 1)
    }

    fn op(&mut self, rank: usize, row: &OpRow) {
        let Some(rank) = self.ranks.get_mut(rank) else { return };
        let Some(rows) = self.communicators.get_mut(&rank.communicator) else { return };
        rows.has_stacks |= row.stack.is_some();
        // Its first op: the host is in it.
        if let Entry::Vacant(place) = rows.places.entry(row.rank) {
            place.insert(Place { host: row.host.to_string(), pid: row.pid });
            if self.clock.as_ref().is_none_or(|clock| !clock.is_of(&row.host)) {
                // The times of its host cannot be compared with those of others.
                (rank.offset, rank.ended) = (None, None);
                rows.collectives.rank(row.rank, None, None);
                rows.p2p.rank(row.rank, None, None, None);
                self.without_clock.insert(row.host.to_string());
            }
        }
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

    fn wants_calls(&self) -> bool {
        true
    }

    fn call(&mut self, rank: usize, row: &ApiCallRow, was_lost: bool) {
        let Some(rank) = self.ranks.get_mut(rank) else { return };
        let Some(rows) = self.communicators.get_mut(&rank.communicator) else { return };
        let is_counted = Function::of(row.function.as_str()).is_some_and(Function::is_counted);
        if row.stack.is_some() {
            rank.marks.note((row.ts_ns, row.tid), rank.numbers);
        }
        let number = rank.numbers.number(is_counted, row.launched, was_lost);
        if is_counted {
            rows.has_stacks |= row.stack.is_some();
            rows.collectives.add_call(rank.rank, number, row, &mut self.room);
        }
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
            if !rank.numbers.are_certain() {
                rows.uncertain.insert(rank.rank);
            }
            if let Some(offset) = rank.offset.filter(|_| rows.has_stacks) {
                rows.marks.insert(rank.rank, (offset, rank.marks));
            }
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
        let Self { collectives, p2p, measured, findings, waits, messages, messages_not_judged, .. } = more;
        let Self { seen, has_stacks, uncertain, places, marks, .. } = more;
        self.marks.extend(marks);
        self.has_stacks |= has_stacks;
        self.uncertain.extend(uncertain);
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
        self.places.extend(places);
    }

    /// What there was no memory to compare.
    fn not_compared(&self, communicator: &str) -> Vec<String> {
        let why = "they do not fit into memory; shorter windows can be compared completely";
        let collectives = self
            .collectives
            .not_compared_from()
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

    fn checked(self, communicator: String) -> (CommunicatorCheck, Option<Difference>) {
        let Self { collectives, p2p, measured, mut findings, waits, messages, messages_not_judged, .. } =
            self;
        let places = self.places;
        let is_certain = self.uncertain.is_empty();
        let ranks: Vec<RankWaits> = waits.into_values().collect();
        let culprit = verdict::culprit(&ranks);
        let verdict = Verdict { ranks, culprit, messages, messages_not_judged };
        if is_certain {
            collectives.check(&mut findings);
        }
        let first = first_difference::first(&findings);
        let difference = first.and_then(|(number, absent)| {
            let before_seen_ns = number.checked_sub(1).and_then(|before| collectives.first_seen(before));
            Some(Difference { number, at: collectives.at(number, &absent)?, before_seen_ns })
        });
        p2p.check(&mut findings);
        let otherwise =
            (FindingKind::MeasuredOtherwise, "had messages whose size is not the one that NCCL planned");
        let unfinished = (FindingKind::Unfinished, "still had messages under way when the recording ended");
        for (outcome, (kind, text)) in [(Outcome::OtherBytes, otherwise), (Outcome::SessionEnded, unfinished)]
        {
            if let Some(ops) = measured.get(&outcome) {
                let text = format!("{ops} operations (counted on each channel) {text}");
                findings.push(Finding { kind, seq: None, ranks: Vec::new(), text });
            }
        }
        findings.extend(verdict.culprit.as_ref().map(|culprit| slowest(culprit, &places)));
        let check = CommunicatorCheck {
            window: None,
            communicator,
            n_ranks: collectives.n_ranks,
            ranks: collectives.ranks(),
            places,
            collectives: collectives.ops(),
            measured,
            findings,
            first_difference: None,
            verdict,
        };
        (check, difference)
    }
}

fn slowest(culprit: &Culprit, places: &BTreeMap<i32, Place>) -> Finding {
    let Culprit { rank, peer, reason, waited_ns, victims } = culprit;
    let why = match reason {
        Reason::OwnGpu => "its GPU had all the data that it needed, and did not continue".to_owned(),
        Reason::Late => "it waits for no other rank: it comes late, or is busy outside of NCCL".to_owned(),
        Reason::NotRecorded => "it was not recorded".to_owned(),
        Reason::Link => {
            format!("its messages to rank {} take the longest in the network", peer.unwrap_or(-1))
        }
    };
    let mut waiting = victims.clone();
    waiting.sort_unstable();
    let who = match waiting.as_slice() {
        [] => "nobody waits".to_owned(),
        [rank] => format!("rank {rank} waits"),
        ranks => format!("{} wait", name_ranks(ranks)),
    };
    let place = places.get(rank).map(|place| format!(" ({}, process {})", place.host, place.pid));
    let text = format!(
        "{who} for rank {rank}{}: {why}; {} of waiting, summed over messages",
        place.unwrap_or_default(),
        spaced_seconds(*waited_ns)
    );
    let ranks = std::iter::once(*rank).chain(*peer).collect();
    Finding { kind: FindingKind::Slowest, seq: None, ranks, text }
}
