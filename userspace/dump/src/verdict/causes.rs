//! Finds the end of the waiting: from each rank with ops in flight along the ranks that it waits for.
//!
//! Data over NVLink or shared memory pass through no proxy. A rank that is connected so may stand still
//! because of its neighbour and not by itself, and nothing on the host tells which. So it is named only if
//! nothing surer is found.

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, Kind, waits::Waits};
use crate::{ProcessState, RankReport};

/// Ranks at which the waiting ends, each with a sentence, and those that wait.
#[derive(Debug, Default)]
struct Causes {
    sure: BTreeMap<u32, String>,
    likely: BTreeMap<u32, String>,
    victims: BTreeSet<u32>,
}

impl Causes {
    fn add(&mut self, is_sure: bool, rank: u32, cause: String) {
        (if is_sure { &mut self.sure } else { &mut self.likely }).insert(rank, cause);
    }
}

/// Who is a cause beside those that surely are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// A rank whose kernel may only be queued behind another one.
    pub(super) queued: bool,
    /// A rank that gets no processor, though it waits for another one by its ops.
    pub(super) starved: bool,
}

/// Follows the waiting, and returns the surest causes and the ranks that wait.
pub(super) fn follow(
    case: &Case<'_>,
    waits: &BTreeMap<u32, Waits>,
    counts: Counts,
) -> (BTreeMap<u32, String>, BTreeSet<u32>) {
    let (behind, most) = case.behind();
    let mut causes = Causes::default();
    // Whoever is waited for is judged like whoever only waits, or more surely: no other search visits it
    // again.
    let (mut visited, mut visited_as_first) = (BTreeSet::new(), BTreeSet::new());
    for (number, rank) in &case.ranks {
        if rank.proxy.ops.is_empty() && !behind.contains(number) {
            continue;
        }
        let mut to_visit = vec![*number];
        while let Some(at) = to_visit.pop() {
            let is_waited_for = at != *number;
            let is_new = !visited.contains(&at)
                && if is_waited_for { visited.insert(at) } else { visited_as_first.insert(at) };
            if !is_new || causes.sure.contains_key(&at) || causes.likely.contains_key(&at) {
                continue;
            }
            let waits = waits.get(&at);
            let waits_for_others =
                !counts.starved && waits.is_some_and(|waits| waits.own.is_none() && !waits.peers.is_empty());
            if let Some(cause) = sure_cause(case, at, (&behind, most), is_waited_for, waits_for_others) {
                causes.sure.insert(at, cause);
                continue;
            }
            let Some(report) = case.ranks.get(&at) else { continue };
            let own = waits.filter(|waits| counts.queued || !waits.own_may_be_queued);
            let own = own.and_then(|waits| waits.own.as_ref());
            let unseen = unseen_neighbours(case, report);
            if let Some(why) = own {
                causes.add(unseen.is_empty(), at, format!("rank {at} makes no progress: {why}"));
            } else if report.proxy.ops.is_empty() && is_waited_for {
                let why = if unseen.is_empty() {
                    " and has no op in flight"
                } else {
                    "; only its GPU knows what it has in flight over NVLink or shared memory"
                };
                causes.add(unseen.is_empty(), at, format!("rank {at} is waited for{why}"));
            } else {
                causes.victims.insert(at);
                to_visit.extend(waits.into_iter().flat_map(|waits| waits.peers.keys()));
                continue;
            }
            to_visit.extend(unseen);
        }
    }
    let Causes { sure, likely, mut victims } = causes;
    if sure.is_empty() {
        return (likely, victims);
    }
    victims.extend(likely.into_keys());
    (sure, victims)
}

/// Returns a sentence if the waiting surely ends at this rank, by other signs than the steps of its ops in
/// flight. `waits_for_others`: by these it waits for other ranks alone, so that a processor would not help it.
fn sure_cause(
    case: &Case<'_>,
    number: u32,
    (behind, most): (&[u32], u64),
    is_waited_for: bool,
    waits_for_others: bool,
) -> Option<String> {
    let Some(rank) = case.ranks.get(&number) else {
        if case.vanished().contains(&(number, Kind::Left)) {
            return case.absent_sentence(number);
        }
        let known = case.absent_words(number).map(|words| format!(": it {words}"));
        let why =
            known.unwrap_or_else(|| " and was not read: it is gone, or its PID was not given".to_owned());
        return Some(format!("rank {number} is waited for{why}"));
    };
    let is_victim = rank.process_state == ProcessState::Starved && waits_for_others;
    if let Some(halted) = rank.halted_sentence().filter(|_| !is_victim) {
        return Some(halted);
    }
    if rank.has_unreadable_ops() {
        let why = "cannot tell what it does, because its ops in flight could not be read";
        return is_waited_for.then(|| format!("rank {number} is waited for: {why}"));
    }
    let has_not_joined = rank.proxy.ops.is_empty() && behind.contains(&number);
    has_not_joined.then(|| format!("{}, and it has no op in flight", case.not_joined_sentence(number, most)))
}

/// Returns the neighbours in the rings on the same node to which no connection goes through the proxy.
fn unseen_neighbours(case: &Case<'_>, rank: &RankReport) -> Vec<u32> {
    let mut found = BTreeSet::new();
    for channel in &rank.channels {
        for peer in [channel.ring_prev, channel.ring_next] {
            let Ok(peer) = u32::try_from(peer) else { continue };
            let other = case.ranks.get(&peer).filter(|_| peer != rank.rank);
            let is_local = other.is_some_and(|other| (other.node, &other.host) == (rank.node, &rank.host));
            let is_seen = rank
                .connections
                .iter()
                .any(|connection| (connection.channel, connection.peer) == (channel.channel, peer));
            if is_local && !is_seen && rank.proxy.carries_rings != Some(true) {
                found.insert(peer);
            }
        }
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{
        State, judge,
        tests::made::{check, lazy, waiting},
    };

    /// On a busy host a rank that only waits gets no processor either.
    #[test]
    fn a_rank_without_a_processor_is_named_unless_it_waits_for_one_that_is_surely_at_fault() {
        let judged = |number: usize, mut rank: RankReport, stopped: Option<usize>| {
            let mut ranks = [waiting(0), waiting(1), waiting(2), waiting(3)];
            rank.process_state = ProcessState::Starved;
            ranks[number] = rank;
            if let Some(stopped) = stopped {
                ranks[stopped].process_state = ProcessState::Stopped;
            }
            judge(&ranks, &[])
        };
        check(&judged(2, waiting(2), Some(1)), State::Stuck, &[1], &[0, 2, 3], "rank 1 is stopped");
        check(&judged(2, waiting(2), None), State::Stuck, &[2], &[0, 1, 3], "rank 2 gets no processor");
        let both = judged(2, lazy(2), Some(1));
        assert_eq!((both.culprits, both.kind), (vec![1, 2], Some(Kind::Stopped)));
    }
}
