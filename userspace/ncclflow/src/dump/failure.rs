//! Ranks that NCCL itself says have failed, and who made them fail.
//!
//! A rank whose peer dies gets `ncclRemoteError` (or `ncclSystemError`, from the socket) from its network, and closes its own
//! connections in turn: the error travels along the rings. So a rank with such an error points to the ranks that are
//! gone, where there are any.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    disagreement,
    report::RankReport,
    verdict::{Case, MAX_SENTENCES, State, Verdict, named},
};

/// Results that NCCL's network gives when the other side went away.
const BROKEN: [&str; 2] = ["ncclRemoteError", "ncclSystemError"];

impl Case<'_> {
    /// The verdict on a communicator of which a rank has failed; with `or_aborted`, also on one that was aborted.
    pub(super) fn failed(&self, or_aborted: bool) -> Option<Verdict> {
        let mut sentences: BTreeMap<u32, String> = BTreeMap::new();
        let (mut broken, mut own) = (BTreeSet::new(), BTreeSet::new());
        for (number, rank) in &self.ranks {
            if let Some(result) = rank.failure() {
                let is_broken = BROKEN.contains(&result);
                (if is_broken { &mut broken } else { &mut own }).insert(*number);
                let meaning = if is_broken { ": a connection of its broke" } else { "" };
                sentences.insert(*number, format!("rank {number} has failed: {result}{meaning}"));
            } else if or_aborted && rank.status.abort == Some(true) {
                own.insert(*number);
                sentences.insert(*number, format!("rank {number} was aborted (abortFlag is set)"));
            }
        }
        if sentences.is_empty() {
            return None;
        }
        let missing = self.missing_neighbours(&broken);
        // A rank that gets more data than it asked for fails; that it asked for less can be seen.
        let disagreement = disagreement::find(&self.ranks, named);
        let culprits = match (disagreement.is_empty(), own.is_empty(), missing.is_empty()) {
            (false, ..) => disagreement.ranks,
            (true, false, _) => own,
            (true, true, false) => missing.clone(),
            (true, true, true) => broken.clone(),
        };
        let mut evidence = disagreement.evidence;
        evidence.extend(sentences.into_values().take(MAX_SENTENCES));
        if culprits == missing {
            let missing: Vec<u32> = missing.into_iter().collect();
            evidence.push(format!(
                "{} was not read, and a rank with a broken connection has it as its neighbour",
                named(&missing)
            ));
            evidence.extend(self.gone_sentence());
        }
        evidence.extend(self.missing_sentence());
        Some(Verdict {
            state: State::Stuck,
            victims: self.ranks_where(|rank| !culprits.contains(&rank.rank)),
            culprits: culprits.into_iter().collect(),
            evidence,
        })
    }

    /// Ranks that were not read and are neighbours of these; all that were not read, where none of them is one.
    fn missing_neighbours(&self, of: &BTreeSet<u32>) -> BTreeSet<u32> {
        let neighbours = of.iter().filter_map(|rank| self.ranks.get(rank)).flat_map(|rank| neighbours(rank));
        let missing: BTreeSet<u32> = neighbours.filter(|rank| self.is_missing(*rank)).collect();
        if !missing.is_empty() || of.is_empty() || self.missing() > MAX_SENTENCES {
            return missing;
        }
        self.missing_ranks().into_iter().collect()
    }
}

/// All ranks that this one is connected with in rings and trees.
fn neighbours(rank: &RankReport) -> impl Iterator<Item = u32> {
    let of_channels = rank.channels.iter().flat_map(|channel| {
        let ends = [channel.ring_prev, channel.ring_next, channel.tree_up];
        ends.into_iter().chain(channel.tree_down.iter().copied())
    });
    of_channels.filter_map(|rank| u32::try_from(rank).ok())
}
