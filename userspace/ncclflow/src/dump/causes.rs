//! Where the waiting ends: from each rank with ops in flight along the ranks that it waits for.
//!
//! What goes over NVLink or shared memory passes no proxy. A rank that is connected so may stand because of its neighbour and not
//! by itself, and nothing on the host tells; it is named only if nothing surer is found.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    report::{ProcessState, RankReport},
    verdict::{Case, is_unread},
    waits::Waits,
};

/// Ranks at which the waiting ends, each with a sentence, and those that wait.
#[derive(Debug, Default)]
pub(super) struct Causes {
    sure: BTreeMap<u32, String>,
    likely: BTreeMap<u32, String>,
    victims: BTreeSet<u32>,
}

impl Causes {
    /// The surest causes there are, and who waits.
    pub(super) fn named(mut self) -> (BTreeMap<u32, String>, BTreeSet<u32>) {
        if self.sure.is_empty() {
            return (self.likely, self.victims);
        }
        self.victims.extend(self.likely.into_keys());
        (self.sure, self.victims)
    }

    fn has(&self, rank: u32) -> bool {
        self.sure.contains_key(&rank) || self.likely.contains_key(&rank)
    }
}

impl Case<'_> {
    /// Follows the waiting. With `queued_counts`, a rank whose kernel may only stand behind another one is a cause too.
    pub(super) fn follow(
        &self,
        waits: &BTreeMap<u32, Waits>,
        behind: &[u32],
        most: u64,
        queued_counts: bool,
    ) -> Causes {
        let mut causes = Causes::default();
        for (number, rank) in &self.ranks {
            if rank.proxy.ops.is_empty() && !behind.contains(number) {
                continue;
            }
            let mut to_visit = vec![*number];
            let mut visited = BTreeSet::new();
            while let Some(at) = to_visit.pop() {
                if !visited.insert(at) || causes.has(at) {
                    continue;
                }
                let is_waited_for = at != *number;
                if let Some(cause) = self.sure_cause(at, behind, most, is_waited_for) {
                    causes.sure.insert(at, cause);
                    continue;
                }
                let Some(report) = self.ranks.get(&at) else { continue };
                let waits = waits.get(&at);
                let own = waits.filter(|waits| queued_counts || !waits.own_may_be_queued);
                let own = own.and_then(|waits| waits.own.as_ref());
                let unseen = self.unseen_neighbours(report);
                if let Some(why) = own {
                    let cause = format!("rank {at} does not go on: {why}");
                    (if unseen.is_empty() { &mut causes.sure } else { &mut causes.likely }).insert(at, cause);
                } else if report.proxy.ops.is_empty() && is_waited_for {
                    let cause = if unseen.is_empty() {
                        format!("rank {at} is waited for and has no op in flight")
                    } else {
                        format!(
                            "rank {at} is waited for; only its GPU knows what it has in flight over NVLink or shared memory"
                        )
                    };
                    (if unseen.is_empty() { &mut causes.sure } else { &mut causes.likely }).insert(at, cause);
                } else {
                    causes.victims.insert(at);
                    to_visit.extend(waits.into_iter().flat_map(|waits| waits.peers.keys()));
                    continue;
                }
                to_visit.extend(unseen);
            }
        }
        causes
    }

    /// Why the waiting surely ends at this rank, other than by what its ops in flight say.
    fn sure_cause(&self, number: u32, behind: &[u32], most: u64, is_waited_for: bool) -> Option<String> {
        let Some(rank) = self.ranks.get(&number) else {
            return Some(format!(
                "rank {number} is waited for and was not read: it is gone, or its PID was not given"
            ));
        };
        if rank.process_state == ProcessState::Stopped {
            let pid = rank.pid;
            return Some(format!(
                "rank {number} is stopped: process {pid} is in state T (SIGSTOP or a debugger)"
            ));
        }
        if is_unread(rank) {
            let why = "cannot tell what it does, because its ops in flight could not be read";
            return is_waited_for.then(|| format!("rank {number} is waited for: {why}"));
        }
        let has_not_joined = rank.proxy.ops.is_empty() && behind.contains(&number);
        has_not_joined.then(|| format!("{}, and it has no op in flight", self.not_joined(number, most)))
    }

    /// Neighbours in the rings on the same node, to which no connection goes through the proxy.
    fn unseen_neighbours(&self, rank: &RankReport) -> Vec<u32> {
        let mut found = BTreeSet::new();
        for channel in &rank.channels {
            for peer in [channel.ring_prev, channel.ring_next] {
                let Ok(peer) = u32::try_from(peer) else { continue };
                let is_local = peer != rank.rank
                    && self
                        .ranks
                        .get(&peer)
                        .is_some_and(|other| (other.node, &other.host) == (rank.node, &rank.host));
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
}
