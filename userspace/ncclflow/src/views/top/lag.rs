//! Finds lagging ranks of a communicator, as far as its ranks are seen here.
//!
//! Two signs. A rank is *behind* if it has not launched now what another rank had launched at the reading
//! before: so it is one interval late at least, which the jitter of a healthy job is not. A rank is *waited
//! for* (derived from measured waits, with steps only) if others waited long to receive from it, and it
//! waited little itself: along a ring each rank waits for its neighbour, and only the late one waits for
//! nobody.

use std::collections::BTreeMap;

use serde::Serialize;

use super::rates::RankRates;
use flow::statistics::{RankKey, Statistics, Wait};
use nccl_library::nccl::Direction;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lag {
    /// Behind by so many collectives.
    Behind(u64),
    /// Waited for by another rank, so many nanoseconds, added up over channels.
    WaitedFor(u64),
}

/// Shortest wait that is a lag: the interval divided by this.
const LONG: u64 = 5;
/// Least ratio of the wait for a rank to its own wait.
const MORE: u64 = 4;

/// Marks the ranks that lag. `before`: the statistics of the reading before.
pub(super) fn mark(ranks: &mut [RankRates], before: &Statistics, interval_ns: u64) {
    let mut communicators: BTreeMap<(Option<u64>, u32), Vec<usize>> = BTreeMap::new();
    for (at, rank) in ranks.iter().enumerate() {
        if let Some(RankKey { hash, instance, .. }) = rank.key {
            communicators.entry((hash, instance)).or_default().push(at);
        }
    }
    for members in communicators.values() {
        for &at in members {
            let lag = behind(ranks, members, at, before)
                .map(Lag::Behind)
                .or_else(|| waited_for(ranks, members, at, interval_ns).map(Lag::WaitedFor));
            if let Some(rank) = ranks.get_mut(at) {
                rank.lag = lag;
            }
        }
    }
}

fn behind(ranks: &[RankRates], members: &[usize], at: usize, before: &Statistics) -> Option<u64> {
    let launched = ranks.get(at)?.launched?;
    let others = members.iter().filter(|&&other| other != at).filter_map(|&other| ranks.get(other));
    let first = others.filter_map(|other| before.launched(&other.key?)).max()?;
    (first > launched).then(|| first - launched)
}

fn waited_for(ranks: &[RankRates], members: &[usize], at: usize, interval_ns: u64) -> Option<u64> {
    let rank = ranks.get(at)?;
    let number = rank.key?.rank;
    let received = |rank: &RankRates, from: Option<i32>| -> u64 {
        let peers = rank.peers.iter().filter(|peer| peer.direction == Direction::Recv);
        let peers = peers.filter(|peer| from.is_none_or(|from| peer.peer == Some(from)));
        let waits = peers.filter_map(|peer| peer.waits.get(Wait::Network.name()));
        waits.map(|sum| sum.ns).fold(0, u64::saturating_add)
    };
    let others = members.iter().filter(|&&other| other != at).filter_map(|&other| ranks.get(other));
    let longest = others.map(|other| received(other, Some(number))).max()?;
    let own = received(rank, None);
    (longest >= interval_ns / LONG && longest >= own.saturating_mul(MORE)).then_some(longest)
}
