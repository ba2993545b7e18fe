//! What measured messages tell: of the ranks of a communicator, the one that others wait for waits least.

use super::{
    activity::Mean,
    evidence::{Evidence, WaitingRank},
    pauses, text,
    verdict::{Cause, FAULT_PERCENT, Kind, STANDARD_ERRORS, above},
};
use crate::check::{Reason, culprit};

/// Returns ranks whose GPUs had the data that they needed and did not go on, ranks that came late, ranks that
/// were not recorded, and links.
pub(super) fn causes(evidence: &Evidence) -> Vec<Cause> {
    let mut causes: Vec<Cause> = Vec::new();
    for ranks in &evidence.waits {
        let found: Vec<Cause> = ranks.iter().filter_map(|rank| of_rank(evidence, ranks, rank)).collect();
        if found.is_empty() {
            causes.extend(elsewhere(evidence, ranks));
        }
        causes.extend(found);
    }
    causes
}

fn of_rank(evidence: &Evidence, ranks: &[WaitingRank], of: &WaitingRank) -> Option<Cause> {
    let name = &evidence.ranks.get(of.rank)?.name;
    let (own, waiting) = of.shares?;
    let equal = |other: &&WaitingRank| {
        other.rank != of.rank
            && evidence.groups.iter().any(|group| group.contains(&of.rank) && group.contains(&other.rank))
    };
    let others = || ranks.iter().filter(equal).map(|other| other.shares);
    let works = above(Some(own), others().map(|shares| Some(shares?.0)))?;
    let waits = above(Some(waiting), others().map(|shares| Some(shares?.1)))?;
    // The others must wait for what it does longer.
    let least = -FAULT_PERCENT;
    let is_certain = waits.certainty >= STANDARD_ERRORS;
    if waits.percent > least || !is_certain {
        return None;
    }
    let waited = |of: Mean| format!("{:.1} %", of.percent);
    let (iteration, peers): (_, Vec<Mean>) =
        (evidence.iteration, others().flatten().map(|(_, mean)| mean).collect());
    let line = format!(
        "of the time of its connections it waits {} for others, its peers {}",
        waited(waiting),
        text::range(&peers.iter().map(|mean| mean.percent).collect::<Vec<_>>())
    );
    if works.percent >= FAULT_PERCENT && works.certainty >= STANDARD_ERRORS {
        let percent = works.percent.min(-waits.percent);
        let own = format!("its GPU has the data and does not go on for {}", waited(own));
        return Some(Cause {
            kind: Kind::Gpu,
            ranks: vec![name.rank],
            text: text::gpu(name, iteration, percent, false),
            evidence: vec![line, own],
            ..Cause::sized(percent, iteration, 0.95)
        });
    }
    let pauses = pauses::of(evidence, of.rank);
    let percent = -waits.percent;
    Some(Cause {
        kind: Kind::Host,
        ranks: vec![name.rank],
        text: text::host(name, &pauses, false, iteration, percent),
        evidence: vec![line],
        ..Cause::sized(percent, iteration, if pauses.is_late() { 0.95 } else { 0.85 })
    })
}

/// Returns what ranks wait for that is no recorded rank: the longest waits lead there.
fn elsewhere(evidence: &Evidence, ranks: &[WaitingRank]) -> Option<Cause> {
    let waits: Vec<_> = ranks.iter().map(|rank| rank.waits.clone()).collect();
    let found = culprit(&waits)?;
    let shares: Vec<f64> = ranks.iter().filter_map(|rank| Some(rank.shares?.1.percent)).collect();
    let waited = shares.iter().copied().fold(0.0, f64::max);
    if waited < FAULT_PERCENT {
        return None;
    }
    let name = |rank: i32| {
        let of = ranks.iter().find(|other| other.waits.rank == rank)?;
        Some(evidence.ranks.get(of.rank)?.name.clone())
    };
    let percent = waited;
    let (kind, ranks, text) = match found.reason {
        Reason::Link => {
            let (from, to) = (name(found.rank)?, found.peer.and_then(name));
            let peer = to.as_ref().map(|to| to.rank).or(found.peer)?;
            (Kind::Link, (vec![from.rank], Some(peer)), text::link(&from, peer, evidence.iteration, percent))
        }
        Reason::NotRecorded => {
            let text = text::not_recorded(found.rank, evidence.iteration, percent);
            (Kind::Outside, (vec![found.rank], None), text)
        }
        Reason::OwnGpu | Reason::Late => return None,
    };
    let (ranks, peer) = ranks;
    Some(Cause {
        kind,
        ranks,
        peer,
        text,
        is_note: kind == Kind::Outside,
        ..Cause::sized(percent, evidence.iteration, 0.85)
    })
}
