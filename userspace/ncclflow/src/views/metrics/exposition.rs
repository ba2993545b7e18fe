//! The metrics and their names. docs/METRICS.md has the list.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    metrics::{counter::ConstCounter, gauge::ConstGauge, info::Info},
    registry::Unit,
};

use super::{
    Expose, encoded,
    families::{Durations, Families, gauge},
    gpu_families,
};
use crate::views::seconds;
use flow::statistics::{
    CallStatistics, OTHER, OpStatistics, ProcessStatistics, RankStatistics, Statistics, Traffic, Wait,
};
use inspect::gpu::GpuSamples;
use recording::sinks::LiveStatistics;
use trace::health::Health;

/// The metrics of a session, made anew at each scrape.
#[derive(Clone, Debug)]
pub struct Exposition {
    live: LiveStatistics,
    gpus: GpuSamples,
    realtime_offset_ns: fn() -> u64,
    health: Health,
}

impl Exposition {
    /// `realtime_offset_ns`: offset from the records' clock to wall time. Called at each scrape: wall time is
    /// set, and goes on while the host sleeps.
    pub fn new(live: LiveStatistics, gpus: GpuSamples, realtime_offset_ns: fn() -> u64) -> Self {
        Self { live, gpus, realtime_offset_ns, health: Health::default() }
    }

    /// Adds what the session's health knows.
    #[must_use]
    pub fn with_health(self, health: &Health) -> Self {
        Self { health: health.clone(), ..self }
    }

    /// Encodes them in the OpenMetrics text format.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        encoded(self.clone())
    }
}

impl Expose for Exposition {
    fn text(&self) -> Result<String, fmt::Error> {
        self.encode()
    }
}

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let statistics = self.live.read();
        let mut families = Families { encoder };
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        families.single("build", "The program that serves these metrics.", &version)?;
        denied(&mut families, self.health.denied())?;
        loss(&mut families, &statistics)?;
        let ranks = Ranks::new(&statistics);
        ops(&mut families, &ranks)?;
        calls(&mut families, &ranks)?;
        traffic(&mut families, &ranks)?;
        progress(&mut families, &ranks, &statistics, (self.realtime_offset_ns)())?;
        gpu_families::encode(&mut families, &self.gpus)
    }
}

/// Labels that name a rank.
type RankLabels = [(&'static str, String); 3];

/// Labels that name the direction of messages, and what they go over.
type WayLabels = [(&'static str, &'static str); 2];

/// A metric of a rank, with the rank's labels and its own.
type Series<'s, L, M> = ((&'s [(&'static str, String)], L), M);

/// Ranks with their labels; the last can stand for all ranks that are not kept apart.
struct Ranks<'a>(Vec<(RankLabels, &'a RankStatistics)>);

impl<'a> Ranks<'a> {
    fn new(statistics: &'a Statistics) -> Self {
        let labels = |[comm, rank, pid]: [String; 3]| [("comm", comm), ("rank", rank), ("pid", pid)];
        let kept = statistics.ranks.iter().map(|(key, rank)| {
            (labels([key.comm_name(), key.rank.to_string(), key.pid.to_string()]), &**rank)
        });
        let folded = (statistics.folded_ranks > 0)
            .then(|| (labels(std::array::from_fn(|_| OTHER.to_owned())), &statistics.folded));
        Self(kept.chain(folded).collect())
    }

    /// Returns a series for each thing that a rank has: its own labels, and a metric.
    fn series<'s, T, L, M>(
        &'s self,
        things: impl Fn(&'s RankStatistics) -> T,
    ) -> impl Iterator<Item = Series<'s, L, M>>
    where
        T: IntoIterator<Item = (L, M)>,
    {
        self.0.iter().flat_map(move |(rank, statistics)| {
            things(statistics).into_iter().map(move |(labels, metric)| ((&rank[..], labels), metric))
        })
    }

    /// Returns a series for each thing of a rank's messages of one kind in one direction.
    fn peer_series<'s, T, L, M>(
        &'s self,
        things: impl Fn(&'s Traffic) -> T + Copy,
    ) -> impl Iterator<Item = Series<'s, (WayLabels, L), M>>
    where
        T: IntoIterator<Item = (L, M)>,
    {
        self.series(move |rank| {
            rank.traffic.iter().flat_map(move |((kind, direction), traffic)| {
                let way = [("direction", direction.name()), ("peer_kind", kind.name())];
                things(traffic).into_iter().map(move |(labels, metric)| ((way, labels), metric))
            })
        })
    }
}

/// Labels of what has no others than its rank's.
const NONE: [(&str, &str); 0] = [];

/// Processes that may not be looked at, for every kind of session.
pub(super) fn denied(families: &mut Families<'_>, processes: usize) -> fmt::Result {
    let help = "Processes that the kernel does not let ncclflow look at: NCCL in them is not seen.";
    families.single("processes_denied", help, &gauge(processes as u64))
}

fn loss(families: &mut Families<'_>, statistics: &Statistics) -> fmt::Result {
    let of_processes = |value: fn(&ProcessStatistics) -> u64| {
        let processes = statistics.processes.iter();
        processes.map(move |(pid, one)| ([("pid", *pid)], ConstCounter::new(value(one))))
    };
    let help = "Records of probe hits that came to be decoded.";
    families.family("records", None, help, of_processes(|process| process.records))?;
    let help = "Records that are missing: buffers were full. Known with the next record of the process, or at \
                the end.";
    families.family("records_lost", None, help, of_processes(|process| process.lost))?;
    let help = "Records that could not be understood.";
    families.single("records_undecodable", help, &ConstCounter::new(statistics.undecodable))?;
    let help = "Records of ranks that are not counted, because there are too many ranks.";
    families.single("records_left_out", help, &ConstCounter::new(statistics.left_out))?;
    let help = "Records of ranks whose launches are not kept, because there are too many ranks.";
    families.single("launches_left_out", help, &ConstCounter::new(statistics.launched_left_out))?;
    let help = "Records that are in the recording and not in these numbers yet.";
    families.single("records_behind", help, &gauge(statistics.behind))?;
    let help = "Ranks without series of their own, because there are too many: they are in the series \
                with the label other.";
    families.single("folded_ranks", help, &gauge(statistics.folded_ranks as u64))?;
    let help = "Of them, those of a process that goes on.";
    let folded = statistics.folded_by_process.iter();
    let folded = folded.map(|(pid, ranks)| ([("pid", *pid)], gauge(*ranks as u64)));
    families.family("folded_ranks_of_process", None, help, folded)
}

fn ops(families: &mut Families<'_>, ranks: &Ranks<'_>) -> fmt::Result {
    let series = |value: fn(&OpStatistics) -> u64| {
        ranks.series(move |rank| {
            rank.ops.iter().map(move |(kind, op)| {
                let labels = [
                    ("coll", kind.coll.as_deref().unwrap_or(OTHER)),
                    ("algorithm", kind.algorithm.unwrap_or("")),
                    ("protocol", kind.protocol.unwrap_or("")),
                ];
                (labels, ConstCounter::new(value(op)))
            })
        })
    };
    let help = "Ops that NCCL planned or posted; one counts once, on however many channels it runs.";
    families.family("ops", None, help, series(|op| op.ops))?;
    let help = "Bytes that the ops were called with: elements times their size.";
    families.family("op", Some(&Unit::Bytes), help, series(|op| op.bytes))?;
    let help = "Ops whose bytes are not known, and not part of the bytes.";
    families.family("ops_unsized", None, help, series(|op| op.unsized_ops))?;
    let one = |value: fn(&RankStatistics) -> u64| {
        ranks.series(move |rank| [(NONE, ConstCounter::new(value(rank)))])
    };
    let help = "Operations × channels that may be incomplete, because records were lost.";
    families.family("op_channels_incomplete", None, help, one(|rank| rank.incomplete))?;
    let help = "Operations × channels that were derived from the work that their plan \
                gives the GPU.";
    families.family("op_channels_derived", None, help, one(|rank| rank.derived))?;
    let help = "Operations × channels that came too late to know whether they had been counted; \
         they were not counted again.";
    families.family("op_channels_late", None, help, one(|rank| rank.late))
}

fn calls(families: &mut Families<'_>, ranks: &Ranks<'_>) -> fmt::Result {
    let series = |value: fn(&CallStatistics) -> u64| {
        ranks.series(move |rank| {
            let calls = rank.calls.iter();
            calls.map(move |(function, call)| ([("function", function)], ConstCounter::new(value(call))))
        })
    };
    let help = "Calls of NCCL's API (with --level api).";
    families.family("calls", None, help, series(|call| call.calls))?;
    let help = "Bytes that calls of NCCL's API gave: elements times their size (with --level api).";
    families.family("call", Some(&Unit::Bytes), help, series(|call| call.bytes))?;
    let help = "Calls of NCCL's API that returned an error (with --returns).";
    families.family("call_errors", None, help, series(|call| call.errors))?;
    let host = ranks.series(|rank| {
        let calls = rank.calls.iter().filter(|(_, call)| call.host.count() > 0);
        calls.map(|(function, call)| ([("function", function)], Durations(&call.host)))
    });
    let help = "Measured: time on the calling thread (with --returns).";
    families.family("call_host", Some(&Unit::Seconds), help, host)
}

fn traffic(families: &mut Families<'_>, ranks: &Ranks<'_>) -> fmt::Result {
    let planned = ranks.peer_series(|traffic| {
        let kinds = [("exact", traffic.planned_exact), ("capacity", traffic.planned_capacity)];
        let kinds = kinds.into_iter().filter(|(_, bytes)| *bytes > 0);
        kinds.map(|(kind, bytes)| ([("bytes_kind", kind)], ConstCounter::new(bytes)))
    });
    let help = "Planned: bytes of messages between a rank and its peers; capacity: an upper bound.";
    families.family("planned", Some(&Unit::Bytes), help, planned)?;
    let measured = |value: fn(&Traffic) -> u64| {
        ranks.peer_series(move |traffic| {
            (traffic.ended > 0).then(|| (NONE, ConstCounter::new(value(traffic))))
        })
    };
    let help = "Measured: messages of the network proxy that came to their end (with --level steps).";
    families.family("messages", None, help, measured(|traffic| traffic.ended))?;
    let help = "Measured: bytes of messages whose size was seen (with --level steps, NCCL 2.27 and later).";
    families.family("message", Some(&Unit::Bytes), help, measured(|traffic| traffic.bytes_measured))?;
    let durations =
        ranks.peer_series(|traffic| (traffic.times.count() > 0).then_some((NONE, Durations(&traffic.times))));
    let help = "Measured: from a message's start to its end (with --level steps).";
    families.family("message_duration", Some(&Unit::Seconds), help, durations)?;
    let waits = ranks.peer_series(|traffic| {
        let waits = Wait::ALL.into_iter().zip(&traffic.waits).filter(|(_, waits)| waits.count() > 0);
        waits.map(|(wait, waits)| ([("wait", wait.name())], Durations(waits)))
    });
    let help = "Derived from measured moments: what a message waited for (with --level steps).";
    families.family("wait", Some(&Unit::Seconds), help, waits)
}

fn progress(
    families: &mut Families<'_>,
    ranks: &Ranks<'_>,
    statistics: &Statistics,
    realtime_offset_ns: u64,
) -> fmt::Result {
    let launched = statistics.ranks.keys().zip(&ranks.0);
    let launched =
        launched.filter_map(|(key, (rank, _))| Some((&rank[..], gauge(statistics.launched(key)?))));
    let help = "NCCL's own count of the collectives that a rank launched, since the communicator was made.";
    families.family("launched_collectives", None, help, launched)?;
    let wall = |ns: u64| ConstGauge::new(seconds(ns.saturating_add(realtime_offset_ns)));
    let seen = ranks.series(|rank| (rank.last_ns > 0).then(|| (NONE, wall(rank.last_ns))));
    let help = "When something was last seen of a rank.";
    families.family("last_seen_timestamp", Some(&Unit::Seconds), help, seen)
}
