//! Finds lagging ranks of a communicator, as far as its ranks are seen here.
//!
//! Two signs. A rank is *behind* if it has not launched now what another rank had launched at the reading
//! before, and no rank of the communicator has launched anything since: hosts run ahead of their GPUs by
//! different numbers of launches, which is no lag while something moves. A rank is *waited
//! for* (derived from measured waits, with steps only) if others waited long to receive from it, and it
//! waited little itself: along a ring each rank waits for its neighbour, and only the late one waits for
//! nobody. That is judged over several refreshes ([`Window`](super::window::Window)).

use serde::Serialize;

use super::{rates::RankRates, window::Judged};
use flow::statistics::{PeerStatistics, RankKey, Statistics, Wait};
use nccl_library::nccl::Direction;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Lag {
    /// Behind by so many collectives.
    Behind(u64),
    /// Waited for by another rank, so many nanoseconds, added up over channels.
    WaitedFor(u64),
}

/// Shortest wait that is a lag: the time that is judged, divided by this.
const LONG: u64 = 5;
/// Least ratio of the wait for a rank to its own wait.
const MORE: u64 = 4;

/// Marks those of a communicator's ranks that lag. `before`: the statistics of the reading before.
pub(super) fn mark(members: &mut [RankRates], before: &Statistics, judged: Option<Judged<'_>>) {
    let lag = |rank: &RankRates| {
        let behind = behind(rank, members, before).map(Lag::Behind);
        behind.or_else(|| waited_for(rank, members, judged?).map(Lag::WaitedFor))
    };
    let lags: Vec<Option<Lag>> = members.iter().map(lag).collect();
    members.iter_mut().zip(lags).for_each(|(rank, lag)| rank.lag = lag);
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

fn waited_for(rank: &RankRates, members: &[RankRates], judged: Judged<'_>) -> Option<u64> {
    let key = rank.key?;
    let others = members.iter().filter_map(|other| other.key).filter(|other| *other != key);
    let longest = others.map(|other| received(&other, Some(key.rank), judged.inner)).max()?;
    let own = received(&key, None, judged.outer);
    let is_long = longest > 0 && longest >= judged.inner_ns / LONG;
    // By the second. The first time lies within the second and is longer than a quarter of it: where all wait
    // alike, the ratio is too small wherever readings fall.
    let is_more = u128::from(longest) * u128::from(judged.outer_ns)
        >= u128::from(own) * u128::from(judged.inner_ns) * u128::from(MORE);
    (is_long && is_more).then_some(longest)
}

/// Returns how long a rank waited between two readings to receive from a peer, or from all.
fn received(key: &RankKey, from: Option<i32>, [since, until]: [&Statistics; 2]) -> u64 {
    let waits = |statistics: &Statistics| {
        let Some(rank) = statistics.ranks.get(key) else { return 0 };
        let wait = |peer: &PeerStatistics| peer.waits[Wait::Network as usize].ns;
        if let Some(from) = from {
            return rank.peers.get(&(Direction::Recv, from)).map_or(0, wait);
        }
        let kept = rank.peers.iter().filter(|((direction, _), _)| *direction == Direction::Recv);
        kept.map(|(_, peer)| peer).chain([&rank.folded_peers]).map(wait).fold(0, u64::saturating_add)
    };
    waits(until).saturating_sub(waits(since))
}
