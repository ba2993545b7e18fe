//! From two snapshots of the statistics to what happened in between.

use serde::Serialize;

use super::lag::{self, Lag};
use flow::statistics::{OpKind, PeerStatistics, RankKey, RankStatistics, Statistics, Sum, Wait};
use nccl_library::nccl::Direction;

/// The statistics at a moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub at_ns: u64,
    pub statistics: Statistics,
}

/// What a rank did between two snapshots, and in all.
#[derive(Clone, Debug)]
pub struct RankRates {
    /// `None`: all ranks beyond the number that is kept apart.
    pub key: Option<RankKey>,
    pub n_ranks: i32,
    /// Ops, or with the API level calls: in all, and a second.
    pub ops: u64,
    pub ops_per_s: f64,
    /// Bytes that they were called with.
    pub bytes: u64,
    pub bytes_per_s: f64,
    /// Ops in between whose bytes are not known: there were more bytes than that.
    pub unsized_ops: u64,
    /// Most ops first.
    pub kinds: Vec<KindRates>,
    /// Measured; the one that was waited for longest first.
    pub peers: Vec<PeerRates>,
    /// NCCL's own count of the collectives that it launched.
    pub launched: Option<u64>,
    /// Since the latest record of this rank.
    pub idle_s: f64,
    pub lag: Option<Lag>,
}

/// Ops of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindRates {
    pub coll: Option<String>,
    pub algorithm: Option<&'static str>,
    pub protocol: Option<&'static str>,
    pub ops: u64,
    pub ops_per_s: f64,
    pub bytes: u64,
    pub bytes_per_s: f64,
    pub unsized_ops: u64,
}

/// What was measured with one peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerRates {
    pub direction: Direction,
    /// `None`: peers beyond the number that is kept apart.
    pub peer: Option<i32>,
    pub messages: u64,
    pub messages_per_s: f64,
    pub bytes: u64,
    pub bytes_per_s: f64,
    /// In between; in the order of [`Wait::ALL`].
    pub waits: [Sum; Wait::ALL.len()],
}

/// All ranks, and how long the time between was.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    pub interval_s: f64,
    pub ranks: Vec<RankRates>,
    pub folded_ranks: usize,
    /// Records that are missing, of all processes.
    pub lost: u64,
    pub undecodable: u64,
}

impl Rates {
    /// What happened from `before` to `now`.
    pub fn between(before: &Snapshot, now: &Snapshot) -> Self {
        Self::with_lag_since(before, before, now)
    }

    /// The same; a rank is behind if it has not launched what others had launched at `earlier`, between the
    /// two.
    pub fn with_lag_since(before: &Snapshot, earlier: &Snapshot, now: &Snapshot) -> Self {
        let interval_ns = now.at_ns.saturating_sub(before.at_ns).max(1);
        let per_s = Per(interval_ns);
        let none = RankStatistics::default();
        let mut ranks: Vec<RankRates> = now
            .statistics
            .ranks
            .iter()
            .map(|(key, rank)| {
                let earlier = before.statistics.ranks.get(key).unwrap_or(&none);
                RankRates {
                    key: Some(*key),
                    launched: now.statistics.launched(key),
                    ..rank_rates(earlier, rank, per_s, now.at_ns)
                }
            })
            .collect();
        lag::mark(&mut ranks, &earlier.statistics, interval_ns);
        if now.statistics.folded_ranks > 0 {
            let (before, folded) = (&before.statistics.folded, &now.statistics.folded);
            ranks.push(rank_rates(before, folded, per_s, now.at_ns));
        }
        Self {
            interval_s: seconds(interval_ns),
            ranks,
            folded_ranks: now.statistics.folded_ranks,
            lost: now.statistics.processes.values().map(|process| process.lost).sum(),
            undecodable: now.statistics.undecodable,
        }
    }
}

/// Nanoseconds to divide by.
#[derive(Clone, Copy)]
struct Per(u64);

impl Per {
    #[expect(clippy::cast_precision_loss, reason = "a rate for people: 53 bits are enough")]
    fn rate(self, now: u64, before: u64) -> f64 {
        now.saturating_sub(before) as f64 * 1e9 / self.0 as f64
    }
}

#[expect(clippy::cast_precision_loss, reason = "a duration for people")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn rank_rates(before: &RankStatistics, now: &RankStatistics, per_s: Per, at_ns: u64) -> RankRates {
    let mut kinds: Vec<KindRates> = kinds(now)
        .map(|(kind, [ops, bytes, unsized_ops])| {
            let earlier = kinds_of(before, kind);
            KindRates {
                coll: kind.coll.clone(),
                algorithm: kind.algorithm,
                protocol: kind.protocol,
                ops,
                ops_per_s: per_s.rate(ops, earlier[0]),
                bytes,
                bytes_per_s: per_s.rate(bytes, earlier[1]),
                unsized_ops: unsized_ops.saturating_sub(earlier[2]),
            }
        })
        .chain(call_kinds(before, now, per_s))
        .collect();
    kinds.sort_by(|a, b| b.ops_per_s.total_cmp(&a.ops_per_s).then(b.ops.cmp(&a.ops)));
    let sum = |value: fn(&KindRates) -> u64| kinds.iter().map(value).fold(0, u64::saturating_add);
    RankRates {
        key: None,
        n_ranks: now.n_ranks,
        ops: sum(|kind| kind.ops),
        ops_per_s: kinds.iter().map(|kind| kind.ops_per_s).sum(),
        bytes: sum(|kind| kind.bytes),
        bytes_per_s: kinds.iter().map(|kind| kind.bytes_per_s).sum(),
        unsized_ops: sum(|kind| kind.unsized_ops),
        kinds,
        peers: peers(before, now, per_s),
        launched: None,
        idle_s: seconds(at_ns.saturating_sub(now.last_ns)),
        lag: None,
    }
}

/// Ops, their bytes, and how many of them have none.
fn kinds(rank: &RankStatistics) -> impl Iterator<Item = (&OpKind, [u64; 3])> {
    rank.ops.iter().map(|(kind, op)| (kind, [op.ops, op.bytes, op.unsized_ops]))
}

fn kinds_of(rank: &RankStatistics, kind: &OpKind) -> [u64; 3] {
    kinds(rank).find(|(known, _)| *known == kind).map_or([0; 3], |(_, numbers)| numbers)
}

/// Calls of the API are ops without algorithm and protocol: NCCL has not decided yet.
fn call_kinds(before: &RankStatistics, now: &RankStatistics, per_s: Per) -> impl Iterator<Item = KindRates> {
    now.calls.iter().map(move |(name, call)| {
        let earlier = before.calls.iter().find(|(known, _)| known == name).map(|(_, call)| call);
        let (calls, bytes) = earlier.map_or((0, 0), |call| (call.calls, call.bytes));
        KindRates {
            coll: Some(name.clone()),
            algorithm: None,
            protocol: None,
            ops: call.calls,
            ops_per_s: per_s.rate(call.calls, calls),
            bytes: call.bytes,
            bytes_per_s: per_s.rate(call.bytes, bytes),
            unsized_ops: 0,
        }
    })
}

fn peers(before: &RankStatistics, now: &RankStatistics, per_s: Per) -> Vec<PeerRates> {
    let none = PeerStatistics::default();
    let kept = now.peers.iter().map(|(&(direction, peer), sums)| {
        let earlier = before.peers.get(&(direction, peer)).unwrap_or(&none);
        peer_rates(direction, Some(peer), earlier, sums, per_s)
    });
    let folded = peer_rates(Direction::Recv, None, &before.folded_peers, &now.folded_peers, per_s);
    let mut peers: Vec<PeerRates> = kept.chain([folded]).filter(|peer| peer.messages > 0).collect();
    peers.sort_by_key(|peer| std::cmp::Reverse(peer.waits.iter().map(|sum| sum.ns).sum::<u64>()));
    peers
}

fn peer_rates(
    direction: Direction,
    peer: Option<i32>,
    before: &PeerStatistics,
    now: &PeerStatistics,
    per_s: Per,
) -> PeerRates {
    let mut waits = now.waits;
    for (wait, earlier) in waits.iter_mut().zip(before.waits) {
        *wait = wait.since(earlier);
    }
    PeerRates {
        direction,
        peer,
        messages: now.messages,
        messages_per_s: per_s.rate(now.messages, before.messages),
        bytes: now.bytes,
        bytes_per_s: per_s.rate(now.bytes, before.bytes),
        waits,
    }
}

impl PeerRates {
    /// What was waited in between, for this.
    pub fn wait(&self, wait: Wait) -> Sum {
        self.waits.get(wait as usize).copied().unwrap_or_default()
    }
}
