//! Finds lagging ranks of a communicator, as far as its ranks are seen here.
//!
//! Two signs. A rank is *behind* if it has not launched now what another rank had launched at the reading
//! before, and no rank of the communicator has launched anything since: hosts run ahead of their GPUs by
//! different numbers of launches, which is no lag while something moves. A rank is *waited
//! for* (derived from measured waits, with steps only) if others waited long to receive from it, and it
//! waited little itself: along a ring each rank waits for its neighbour, and only the late one waits for
//! nobody.

use serde::Serialize;

use super::rates::RankRates;
use flow::statistics::{Statistics, Wait};
use nccl_library::nccl::Direction;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
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

/// Marks the ranks that lag; those of one communicator stand together. `before`: the statistics of the
/// reading before.
pub(super) fn mark(ranks: &mut [RankRates], before: &Statistics, interval_ns: u64) {
    let communicator = |rank: &RankRates| rank.key.map(|key| (key.hash, key.instance));
    for members in ranks.chunk_by_mut(|a, b| communicator(a) == communicator(b)) {
        let lag = |rank: &RankRates| {
            let behind = behind(rank, members, before).map(Lag::Behind);
            behind.or_else(|| waited_for(rank, members, interval_ns).map(Lag::WaitedFor))
        };
        let lags: Vec<Option<Lag>> = members.iter().map(lag).collect();
        members.iter_mut().zip(lags).for_each(|(rank, lag)| rank.lag = lag);
    }
}

fn behind(rank: &RankRates, members: &[RankRates], before: &Statistics) -> Option<u64> {
    let launched = rank.launched?;
    let moves = |other: &RankRates| other.launched > other.key.and_then(|key| before.launched(&key));
    if members.iter().any(moves) {
        return None;
    }
    let others = members.iter().filter(|other| other.key != rank.key);
    let first = others.filter_map(|other| before.launched(&other.key?)).max()?;
    (first > launched).then(|| first - launched)
}

fn waited_for(rank: &RankRates, members: &[RankRates], interval_ns: u64) -> Option<u64> {
    let number = rank.key?.rank;
    let received = |rank: &RankRates, from: Option<i32>| -> u64 {
        let peers = rank.peers.iter().filter(|peer| peer.direction == Direction::Recv);
        let peers = peers.filter(|peer| from.is_none_or(|from| peer.peer == Some(from)));
        let waits = peers.filter_map(|peer| peer.waits.get(Wait::Network.name()));
        waits.map(|sum| sum.ns).fold(0, u64::saturating_add)
    };
    let others = members.iter().filter(|other| other.key != rank.key);
    let longest = others.map(|other| received(other, Some(number))).max()?;
    let own = received(rank, None);
    (longest >= interval_ns / LONG && longest >= own.saturating_mul(MORE)).then_some(longest)
}
