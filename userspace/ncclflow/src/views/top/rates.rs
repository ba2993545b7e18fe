//! The session that is shown, and the rates between two snapshots of its statistics.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;

use super::{
    lag::{self, Lag},
    window::Window,
};
use crate::views::seconds;
use flow::{
    identity::{JobMember, Whose, job_names},
    schema::GpuRow,
    session::Level,
    statistics::{OpKind, PeerStatistics, RankKey, RankStatistics, Statistics, Sum, Wait},
};
use nccl_library::nccl::Direction;

/// The session that is shown.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    pub host: String,
    pub level: Option<Level>,
    pub processes: BTreeMap<u32, WatchedProcess>,
    /// The recording that is shown in the place of processes.
    pub recording: Option<ShownRecording>,
}

/// A recording that is shown.
#[derive(Clone, Debug, Default)]
pub struct ShownRecording {
    /// When it begins.
    pub begun: String,
    /// Nothing more comes.
    pub is_over: bool,
}

/// A process that is shown.
#[derive(Clone, Debug)]
pub struct WatchedProcess {
    /// What its job follows from. Its communicators are those that were seen.
    pub member: JobMember<u32>,
    /// Versions of NCCL.
    pub nccl: String,
    pub has_exited: bool,
}

impl WatchedProcess {
    pub fn new(pid: u32, name: &str, nccl: String, whose: Option<&Whose>) -> Self {
        Self { member: JobMember::new(pid, pid, name, whose), nccl, has_exited: false }
    }
}

impl Subject {
    /// Returns the name of each process's job.
    pub(super) fn jobs(&self, rates: &Rates) -> BTreeMap<u32, String> {
        let mut members: BTreeMap<u32, JobMember<u32>> =
            self.processes.iter().map(|(&pid, process)| (pid, process.member.clone())).collect();
        for key in rates.ranks.iter().filter_map(|rank| rank.key) {
            let member = members.entry(key.pid).or_insert_with(|| JobMember::new(key.pid, key.pid, "", None));
            member.communicators.push(key.comm_name());
        }
        job_names(&members.into_values().collect::<Vec<_>>())
    }

    /// Tells that processes have exited, and how many of how many.
    pub(super) fn exited(&self) -> Option<(usize, usize)> {
        let exited = self.processes.values().filter(|process| process.has_exited).count();
        (exited > 0).then_some((exited, self.processes.len()))
    }

    /// Tells whether a recording is shown to which nothing more comes.
    pub(super) fn is_recording_over(&self) -> bool {
        self.recording.as_ref().is_some_and(|recording| recording.is_over)
    }

    /// Tells whether all processes have exited.
    pub fn has_ended(&self) -> bool {
        self.exited().is_some_and(|(exited, all)| exited == all)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub at_ns: u64,
    pub statistics: Arc<Statistics>,
    /// The latest row of each GPU of the host.
    pub gpus: Vec<Arc<GpuRow>>,
}

/// A rank's activity between two snapshots, and in all; in JSON without what names the rank.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RankRates {
    /// `None`: all ranks beyond the number that is kept apart.
    #[serde(skip)]
    pub key: Option<RankKey>,
    #[serde(skip)]
    pub n_ranks: i32,
    /// Ops, or with the API level calls: in all, and a second.
    pub ops: u64,
    #[serde(rename = "opsPerSecond")]
    pub ops_per_s: f64,
    /// Bytes that they were called with.
    pub bytes: u64,
    #[serde(rename = "bytesPerSecond")]
    pub bytes_per_s: f64,
    /// Ops in between whose bytes are not known: there were more bytes than that.
    pub unsized_ops: u64,
    /// NCCL's own count of the collectives that it launched.
    pub launched: Option<u64>,
    /// Seconds since the latest record of this rank.
    #[serde(rename = "idleSeconds")]
    pub idle_s: f64,
    pub lag: Option<Lag>,
    /// What ranks of its communicator are compared by.
    #[serde(skip)]
    pub(super) compared: Compared,
    /// Kinds of op, most ops first.
    pub kinds: Vec<KindRates>,
    /// Measured peers; the one that was waited for longest first.
    pub peers: Vec<PeerRates>,
}

/// A rank's activity over several refreshes, as far as there are any.
#[derive(Clone, Debug, Default)]
pub(super) struct Compared {
    pub(super) seconds: f64,
    pub(super) kinds: Vec<KindRates>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KindRates {
    pub coll: Option<String>,
    pub algorithm: Option<&'static str>,
    pub protocol: Option<&'static str>,
    pub ops: u64,
    #[serde(rename = "opsPerSecond")]
    pub ops_per_s: f64,
    pub bytes: u64,
    #[serde(rename = "bytesPerSecond")]
    pub bytes_per_s: f64,
    pub unsized_ops: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerRates {
    #[serde(rename = "op")]
    pub direction: Direction,
    /// `None`: peers beyond the number that is kept apart.
    pub peer: Option<i32>,
    #[serde(rename = "messagesMeasured")]
    pub messages: u64,
    #[serde(rename = "messagesPerSecond")]
    pub messages_per_s: f64,
    #[serde(rename = "bytesMeasured")]
    pub bytes: u64,
    #[serde(rename = "bytesPerSecond")]
    pub bytes_per_s: f64,
    /// Waits in between: count, and nanoseconds in all; only those that occurred.
    pub waits: BTreeMap<&'static str, Sum>,
}

/// Rates of all ranks, and the length of the interval.
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
    /// Returns the rates from `before` to `now`, the only two readings there are but for `earlier`, between
    /// them: a rank is behind if it has not launched what others had launched then.
    pub fn of_one_interval(before: &Snapshot, earlier: &Snapshot, now: &Snapshot) -> Self {
        Self::between(before, earlier, now, &Window::one(before))
    }

    /// Returns the names of the communicators, in their order.
    pub fn communicators(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.ranks.iter().filter_map(|rank| rank.key).map(|key| key.comm_name()).collect();
        names.dedup();
        names
    }

    /// Like [`Self::of_one_interval`], where earlier readings say who is waited for.
    pub(super) fn between(before: &Snapshot, earlier: &Snapshot, now: &Snapshot, window: &Window) -> Self {
        let length_ns = now.at_ns.saturating_sub(before.at_ns);
        let interval_ns = length_ns.max(1);
        let none = RankStatistics::default();
        let mut ranks: Vec<RankRates> = now
            .statistics
            .ranks
            .iter()
            .map(|(key, rank)| {
                let earlier = before.statistics.ranks.get(key).map_or(&none, |rank| &**rank);
                RankRates {
                    key: Some(*key),
                    launched: now.statistics.launched(key),
                    ..rank_rates(earlier, rank, interval_ns, now.at_ns)
                }
            })
            .collect();
        let communicator = |rank: &RankRates| rank.key.map(|key| (key.hash, key.instance));
        for members in ranks.chunk_by_mut(|a, b| communicator(a) == communicator(b)) {
            let span = window.span(members, now);
            lag::mark(members, &earlier.statistics, span.and_then(|span| span.judged));
            let since = span.map_or(before, |span| span.since);
            for rank in members {
                rank.compared = compared(rank.key, since, now);
            }
        }
        if now.statistics.folded_ranks > 0 {
            let (before, folded) = (&before.statistics.folded, &now.statistics.folded);
            ranks.push(rank_rates(before, folded, interval_ns, now.at_ns));
        }
        Self {
            interval_s: seconds(length_ns),
            ranks,
            folded_ranks: now.statistics.folded_ranks,
            lost: now.statistics.processes.values().map(|process| process.lost).sum(),
            undecodable: now.statistics.undecodable,
        }
    }
}

/// Returns the rate a second.
#[expect(clippy::cast_precision_loss, reason = "a rate for people: 53 bits are enough")]
fn rate(now: u64, before: u64, interval_ns: u64) -> f64 {
    now.saturating_sub(before) as f64 * 1e9 / interval_ns as f64
}

fn compared(key: Option<RankKey>, since: &Snapshot, now: &Snapshot) -> Compared {
    let Some((key, rank)) = key.and_then(|key| Some((key, now.statistics.ranks.get(&key)?))) else {
        return Compared::default();
    };
    let none = RankStatistics::default();
    let before = since.statistics.ranks.get(&key).map_or(&none, |rank| &**rank);
    let span_ns = now.at_ns.saturating_sub(since.at_ns).max(1);
    Compared { seconds: seconds(span_ns), kinds: kind_rates(before, rank, span_ns) }
}

/// Returns the rates of all kinds of op, most ops first.
fn kind_rates(before: &RankStatistics, now: &RankStatistics, interval_ns: u64) -> Vec<KindRates> {
    let earlier = kinds(before);
    let mut kinds: Vec<KindRates> = kinds(now)
        .into_iter()
        .map(|(kind, [ops, bytes, unsized_ops])| {
            let earlier = earlier.iter().find(|(known, _)| *known == kind).map_or([0; 3], |(_, sums)| *sums);
            KindRates {
                coll: kind.coll,
                algorithm: kind.algorithm,
                protocol: kind.protocol,
                ops,
                ops_per_s: rate(ops, earlier[0], interval_ns),
                bytes,
                bytes_per_s: rate(bytes, earlier[1], interval_ns),
                unsized_ops: unsized_ops.saturating_sub(earlier[2]),
            }
        })
        .collect();
    kinds.sort_by(|a, b| b.ops_per_s.total_cmp(&a.ops_per_s).then(b.ops.cmp(&a.ops)));
    kinds
}

fn rank_rates(before: &RankStatistics, now: &RankStatistics, interval_ns: u64, at_ns: u64) -> RankRates {
    let kinds = kind_rates(before, now, interval_ns);
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
        peers: peers(before, now, interval_ns),
        launched: None,
        idle_s: seconds(at_ns.saturating_sub(now.last_ns)),
        lag: None,
        compared: Compared::default(),
    }
}

/// Returns ops, their bytes, and how many have no known bytes, by kind. Calls of the API are ops without
/// algorithm and protocol: NCCL has not decided yet.
fn kinds(rank: &RankStatistics) -> Vec<(OpKind, [u64; 3])> {
    let ops = rank.ops.iter().map(|(kind, op)| (kind.clone(), [op.ops, op.bytes, op.unsized_ops]));
    let calls = rank.calls.iter().map(|(name, call)| {
        let kind = OpKind { coll: Some(name.clone()), algorithm: None, protocol: None };
        (kind, [call.calls, call.bytes, 0])
    });
    ops.chain(calls).collect()
}

fn peers(before: &RankStatistics, now: &RankStatistics, interval_ns: u64) -> Vec<PeerRates> {
    let none = PeerStatistics::default();
    let kept = now.peers.iter().map(|(&(direction, peer), sums)| {
        let earlier = before.peers.get(&(direction, peer)).unwrap_or(&none);
        peer_rates(direction, Some(peer), earlier, sums, interval_ns)
    });
    let folded = peer_rates(Direction::Recv, None, &before.folded_peers, &now.folded_peers, interval_ns);
    let mut peers: Vec<PeerRates> = kept.chain([folded]).filter(|peer| peer.messages > 0).collect();
    peers.sort_by_key(|peer| std::cmp::Reverse(peer.waits.values().map(|sum| sum.ns).sum::<u64>()));
    peers
}

fn peer_rates(
    direction: Direction,
    peer: Option<i32>,
    before: &PeerStatistics,
    now: &PeerStatistics,
    interval_ns: u64,
) -> PeerRates {
    let waits = now.waits.iter().zip(before.waits).map(|(wait, earlier)| wait.since(earlier));
    PeerRates {
        direction,
        peer,
        messages: now.ended,
        messages_per_s: rate(now.ended, before.ended, interval_ns),
        bytes: now.bytes_measured,
        bytes_per_s: rate(now.bytes_measured, before.bytes_measured, interval_ns),
        waits: Wait::ALL.map(Wait::name).into_iter().zip(waits).filter(|(_, sum)| sum.count > 0).collect(),
    }
}
