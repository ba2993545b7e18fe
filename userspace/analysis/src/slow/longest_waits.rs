//! Finds the rank or link that the others wait for: along each rank's waits, without comparing clocks.

use std::collections::BTreeMap;

use serde::Serialize;

/// Waits of one rank, in nanoseconds, all connections together: more than the time that went by.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RankWaits {
    pub rank: i32,
    /// Time in which its own GPU had all that it needed.
    pub own_gpu_ns: u64,
    /// Waits for data of each peer.
    pub for_data_ns: BTreeMap<i32, u64>,
    /// Waits for each peer to take what was sent before.
    pub for_slot_ns: BTreeMap<i32, u64>,
    /// Time that messages to each peer were in the network.
    pub in_network_ns: BTreeMap<i32, u64>,
}

impl RankWaits {
    /// Returns how long it waited for each peer.
    fn by_peer(&self) -> BTreeMap<i32, u64> {
        let mut by_peer: BTreeMap<i32, u64> = BTreeMap::new();
        for (peer, ns) in self.for_data_ns.iter().chain(&self.for_slot_ns) {
            let sum = by_peer.entry(*peer).or_default();
            *sum = sum.saturating_add(*ns);
        }
        by_peer
    }

    /// Returns how long it waited for others.
    pub(crate) fn waited(&self) -> u64 {
        self.for_data_ns.values().chain(self.for_slot_ns.values()).copied().fold(0, u64::saturating_add)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The rank's GPU had its input and did not advance.
    OwnGpu,
    /// The rank waits for nobody and its GPU has nothing to do: it arrives late, busy outside NCCL.
    Late,
    /// The rank was not recorded, and others wait for it.
    NotRecorded,
    /// Messages to that peer are long in the network.
    Link,
}

/// Where the longest waits lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Culprit {
    pub rank: i32,
    /// The other end, if the culprit is a link.
    pub peer: Option<i32>,
    pub reason: Reason,
}

/// A link stands out on which messages are this many times as long as on the link in the middle.
pub(super) const TIMES_THE_OTHERS: u64 = 2;

/// Follows the longest waits to where they end.
pub(super) fn culprit(ranks: &[RankWaits]) -> Option<Culprit> {
    let by_rank: BTreeMap<i32, &RankWaits> = ranks.iter().map(|waits| (waits.rank, waits)).collect();
    let first = ranks.iter().max_by_key(|waits| waits.waited())?;
    let (mut at, mut incoming, mut way) = (first.rank, None, Vec::new());
    let stop = |rank, reason| Some(Culprit { rank, peer: None, reason });
    loop {
        let Some(here) = by_rank.get(&at) else {
            return incoming.and_then(|_| stop(at, Reason::NotRecorded));
        };
        let (next, wait) = here.by_peer().into_iter().max_by_key(|(_, ns)| *ns).unwrap_or((at, 0));
        if let Some(incoming) = incoming
            && here.own_gpu_ns.saturating_add(here.waited()) < incoming / 10
        {
            return stop(at, Reason::Late);
        }
        if here.own_gpu_ns >= wait {
            return stop(at, Reason::OwnGpu);
        }
        way.push(at);
        (at, incoming) = (next, Some(wait));
        if let Some(begin) = way.iter().position(|rank| *rank == next) {
            let (slowest, exit) = circle(&by_rank, &way, begin);
            if let Some(slowest) = slowest.filter(|slowest| slowest.own_gpu_ns >= wait / 2) {
                return stop(slowest.rank, Reason::OwnGpu);
            }
            match exit {
                Some((peer, ns)) if ns >= wait / 4 => (at, incoming) = (peer, Some(ns)),
                _ => return link(&by_rank),
            }
        }
    }
}

/// Returns the causes of a circle of waits, as in a tree, where a rank waits for what can only come down once
/// it has sent up: the member whose own GPU took longest, at fault if that is most of the wait, or else the
/// longest wait for somebody outside. If neither is at fault, a link is.
fn circle<'a>(
    by_rank: &BTreeMap<i32, &'a RankWaits>,
    way: &[i32],
    begin: usize,
) -> (Option<&'a RankWaits>, Option<(i32, u64)>) {
    let members = || way.iter().skip(begin).filter_map(|rank| by_rank.get(rank).copied());
    let outside = |waits: &'a RankWaits| waits.by_peer().into_iter().filter(|(peer, _)| !way.contains(peer));
    let slowest = members().max_by_key(|waits| waits.own_gpu_ns);
    (slowest, members().flat_map(outside).max_by_key(|(_, ns)| *ns))
}

/// Returns the link on which messages were longest, if it stands out, where no GPU is at fault.
fn link(by_rank: &BTreeMap<i32, &RankWaits>) -> Option<Culprit> {
    let mut links: Vec<(u64, i32, i32)> = by_rank
        .values()
        .flat_map(|waits| waits.in_network_ns.iter().map(|(peer, ns)| (*ns, waits.rank, *peer)))
        .collect();
    links.sort_unstable();
    let (longest, rank, peer) = links.pop()?;
    let median = links.get(links.len() / 2).map_or(0, |(ns, ..)| *ns);
    let stands_out = !links.is_empty() && longest / TIMES_THE_OTHERS >= median;
    stands_out.then_some(Culprit { rank, peer: Some(peer), reason: Reason::Link })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn waits(rank: i32, own: u64, data: &[(i32, u64)], slot: &[(i32, u64)]) -> RankWaits {
        let by_peer = |waits: &[(i32, u64)]| waits.iter().map(|(peer, ms)| (*peer, ms * MS)).collect();
        RankWaits {
            rank,
            own_gpu_ns: own * MS,
            for_data_ns: by_peer(data),
            for_slot_ns: by_peer(slot),
            in_network_ns: BTreeMap::new(),
        }
    }

    #[test]
    fn waits_lead_to_the_rank_whose_gpu_stalls() {
        let ranks = [
            waits(0, 5, &[(3, 500)], &[]),
            waits(1, 5, &[], &[(2, 480)]),
            waits(2, 490, &[(1, 3)], &[]),
            waits(3, 5, &[(2, 520)], &[]),
        ];
        let culprit = culprit(&ranks).unwrap();
        assert_eq!((culprit.rank, culprit.reason), (2, Reason::OwnGpu));
    }

    #[test]
    fn late_and_unrecorded_ranks_are_told_apart() {
        let ranks = [waits(0, 5, &[(1, 500)], &[]), waits(1, 1, &[(0, 2)], &[])];
        assert_eq!(culprit(&ranks).unwrap().reason, Reason::Late);
        let ranks = [waits(0, 5, &[(1, 500)], &[])];
        assert_eq!(culprit(&ranks).unwrap().reason, Reason::NotRecorded);
    }

    /// Rank 2 has what came up and sends nothing on; what comes down to it waits for that.
    #[test]
    fn a_circle_of_waits_in_a_tree_is_the_fault_of_the_gpu_in_it() {
        let ranks = [
            waits(0, 66, &[(1, 251), (2, 7252)], &[]),
            waits(1, 919, &[(2, 7252), (3, 122)], &[]),
            waits(2, 14281, &[(0, 15644), (1, 807)], &[(1, 40)]),
            waits(3, 230, &[(2, 7226)], &[]),
        ];
        let culprit = culprit(&ranks).unwrap();
        assert_eq!((culprit.rank, culprit.reason), (2, Reason::OwnGpu));
    }

    /// Ranks 0 and 2 wait for each other's halves of the tree; both halves wait for rank 3, whose GPU stands
    /// still. Measured.
    #[test]
    fn a_circle_of_waits_leads_out_to_the_gpu_that_all_wait_for() {
        let ranks = [
            waits(0, 48, &[(1, 5684), (2, 5688)], &[]),
            waits(1, 79, &[(0, 12), (2, 5842), (3, 11282)], &[]),
            waits(2, 94, &[(0, 11182), (1, 5583), (3, 5523)], &[]),
            waits(3, 5566, &[(1, 22), (2, 120)], &[]),
        ];
        let culprit = culprit(&ranks).unwrap();
        assert_eq!((culprit.rank, culprit.reason), (3, Reason::OwnGpu));
    }

    #[test]
    fn waits_in_a_circle_lead_to_the_link_that_stands_out() {
        let mut circle: Vec<RankWaits> =
            (0..4).map(|rank| waits(rank, 5, &[((rank + 3) % 4, 50)], &[])).collect();
        assert_eq!(culprit(&circle), None);
        for (rank, waits) in circle.iter_mut().enumerate() {
            let next = i32::try_from((rank + 1) % 4).unwrap();
            waits.in_network_ns.insert(next, if rank == 1 { 200 * MS } else { 10 * MS });
        }
        let culprit = culprit(&circle).unwrap();
        assert_eq!((culprit.reason, culprit.rank, culprit.peer), (Reason::Link, 1, Some(2)));
    }
}
