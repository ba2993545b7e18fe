//! Ranks that NCCL itself reports as failed, and the ranks that made them fail.
//!
//! A rank whose peer dies gets `ncclRemoteError` from its network (`ncclSystemError` from the socket
//! transport), and closes its own connections in turn: the error travels along the rings. So a rank with such
//! an error points to the ranks that are gone, where there are any.

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, Kind, MAX_SENTENCES, Verdict, disagreement, subject};
use crate::ChannelReport;

/// Results that NCCL's network gives when the other side of a connection is gone.
const CONNECTION_BROKE: [&str; 2] = ["ncclRemoteError", "ncclSystemError"];

/// Judges a communicator of which a rank has failed or, with `or_aborted`, that was aborted.
pub(super) fn failed(case: &Case<'_>, or_aborted: bool) -> Option<Verdict> {
    let mut sentences: BTreeMap<u32, String> = BTreeMap::new();
    // Ranks whose connection broke, and ranks that failed by themselves.
    let (mut cut_off, mut own) = (BTreeSet::new(), BTreeSet::new());
    for (number, rank) in &case.ranks {
        if let Some(result) = rank.failure() {
            let is_cut_off = CONNECTION_BROKE.contains(&result);
            (if is_cut_off { &mut cut_off } else { &mut own }).insert(*number);
            let meaning = if is_cut_off { ": one of its connections broke" } else { "" };
            sentences.insert(*number, format!("rank {number} has failed: {result}{meaning}"));
        } else if or_aborted && rank.status.abort == Some(true) {
            own.insert(*number);
            sentences.insert(*number, format!("rank {number} was aborted (abortFlag is set)"));
        }
    }
    if sentences.is_empty() {
        return None;
    }
    let missing = missing_neighbours(case, &cut_off);
    // A rank that gets more data than it asked for fails. The rank that asked for less is to blame, and that
    // can be seen.
    let disagreement = disagreement::find(&case.ranks);
    let culprits = match (disagreement.is_empty(), own.is_empty(), missing.is_empty()) {
        (false, ..) => disagreement.ranks,
        (true, false, _) => own,
        (true, true, false) => missing.clone(),
        (true, true, true) => cut_off.clone(),
    };
    let mut evidence = disagreement.evidence;
    evidence.extend(sentences.into_values().take(MAX_SENTENCES));
    if culprits == missing {
        let left: Vec<u32> = case
            .vanished()
            .into_iter()
            .filter(|(_, kind)| *kind == Kind::Left)
            .map(|(rank, _)| rank)
            .collect();
        evidence.extend(left.iter().filter_map(|rank| case.absent_sentence(*rank)).take(MAX_SENTENCES));
        let unread: BTreeSet<u32> = missing.into_iter().filter(|rank| !left.contains(rank)).collect();
        if !unread.is_empty() {
            let unread = subject(&unread, ["was", "were"]);
            evidence.push(format!("{unread} not read, and may be at the other end of a broken connection"));
        }
        evidence.extend(case.exited_sentence());
    }
    evidence.extend(case.missing_sentence());
    Some(case.stuck(Kind::Failed, culprits, evidence))
}

/// Returns the neighbours of these ranks that were not read; if there are none, all ranks that were not read.
fn missing_neighbours(case: &Case<'_>, of: &BTreeSet<u32>) -> BTreeSet<u32> {
    let channels = of.iter().filter_map(|rank| case.ranks.get(rank)).flat_map(|rank| &rank.channels);
    let neighbours = channels.flat_map(ChannelReport::neighbours);
    let missing: BTreeSet<u32> = neighbours.filter(|rank| case.is_missing(*rank)).collect();
    if !missing.is_empty() || of.is_empty() || case.n_missing() > MAX_SENTENCES {
        return missing;
    }
    case.missing_ranks().into_iter().collect()
}
