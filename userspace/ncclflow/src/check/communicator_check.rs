//! `ncclflow check`: all of it, over the folders of one or several hosts.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use anyhow::Result;
use serde::Serialize;

use super::{
    attribution::Attribution,
    collectives::{Collectives, name_ranks},
    p2p::PointToPoint,
    rank_reader::{RankFile, Recording, recordings},
    verdict::{self, Culprit, RankWaits, Reason, Verdict},
};
use flow::schema::{MessageRow, Outcome};
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
}

pub fn check(dirs: &[PathBuf]) -> Result<CheckReport> {
    let recordings = recordings(dirs)?;
    let mut by_folder: BTreeMap<&str, Vec<(&Recording, &RankFile)>> = BTreeMap::new();
    for recording in &recordings {
        for file in &recording.ranks {
            by_folder.entry(&file.folder).or_default().push((recording, file));
        }
    }
    let communicators: Vec<CommunicatorCheck> = by_folder
        .into_iter()
        .map(|(folder, members)| communicator(folder, &members))
        .collect::<Result<_>>()?;
    Ok(CheckReport {
        consistent: communicators.iter().all(|communicator| communicator.findings.is_empty()),
        recordings: recordings.into_iter().map(|recording| recording.path).collect(),
        communicators,
    })
}

fn communicator(folder: &str, members: &[(&Recording, &RankFile)]) -> Result<CommunicatorCheck> {
    let (mut collectives, mut p2p) = (Collectives::default(), PointToPoint::default());
    let (mut findings, mut verdict) = (Vec::new(), Verdict::default());
    let mut measured: BTreeMap<Outcome, u64> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (recording, file) in members {
        if !seen.insert(file.rank) {
            let text = format!("rank {} is in two of the folders: only the first counts", file.rank);
            let kind = FindingKind::TwoRecordings;
            findings.push(Finding { kind, seq: None, ranks: vec![file.rank], text });
            continue;
        }
        let clock = recording.clock.as_ref();
        let offset = clock.map_or(0, |clock| clock.offset_ns);
        let ended = clock.and_then(|clock| clock.ended_monotonic_ns);
        collectives.rank(file.rank, ended, offset);
        p2p.rank(file.rank, clock.map(|clock| clock.started_monotonic_ns), ended, offset);
        file.flows(|line| {
            collectives.add(&line);
            p2p.add(&line, offset);
            if let Some(outcome) = line.measured {
                *measured.entry(outcome).or_default() += 1;
            }
        })?;
        let (attribution, in_network) = attribution(file, ended)?;
        verdict.messages += attribution.messages;
        verdict.messages_not_judged += attribution.not_judged;
        verdict.ranks.push(RankWaits::new(file.rank, &attribution, in_network));
    }
    collectives.check(&mut findings);
    p2p.check(&mut findings);
    let otherwise = (FindingKind::MeasuredOtherwise, "with messages of another size than was planned");
    let unfinished = (FindingKind::Unfinished, "with messages on their way when the recording ended");
    for (outcome, (kind, text)) in [(Outcome::OtherBytes, otherwise), (Outcome::SessionEnded, unfinished)] {
        if let Some(ops) = measured.get(&outcome) {
            let text = format!("{ops} ops (each channel counts) {text}");
            findings.push(Finding { kind, seq: None, ranks: Vec::new(), text });
        }
    }
    verdict.culprit = verdict::culprit(&verdict.ranks);
    findings.extend(verdict.culprit.as_ref().map(slowest));
    Ok(CommunicatorCheck {
        communicator: folder.to_owned(),
        n_ranks: collectives.n_ranks,
        ranks: collectives.ranks(),
        collectives: collectives.ops(),
        measured,
        findings,
        verdict,
    })
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

/// What kept a rank back, and how long its messages were in the network, by peer.
fn attribution(file: &RankFile, ended_ns: Option<u64>) -> Result<(Attribution, BTreeMap<i32, u64>)> {
    let (mut attribution, mut in_network) = (Attribution::default(), BTreeMap::new());
    // The lines of an op on a channel stand together.
    let mut op: Vec<MessageRow> = Vec::new();
    file.steps(|line| {
        if let (Direction::Send, Some(wait)) = (line.op, line.wait_network_ns.get()) {
            *in_network.entry(line.peer).or_default() += wait;
        }
        if op.first().is_some_and(|first| (first.seq, first.channel) != (line.seq, line.channel)) {
            attribution.add_op(&op, ended_ns);
            op.clear();
        }
        op.push(line);
    })?;
    attribution.add_op(&op, ended_ns);
    Ok((attribution, in_network))
}
