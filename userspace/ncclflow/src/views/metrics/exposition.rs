//! The metrics and their names. docs/METRICS.md has the list.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, text},
    registry::{Registry, Unit},
};

use super::{
    families::{Families, Labels, seconds},
    gpu_families,
};
use flow::statistics::{
    CallStatistics, OTHER, OpStatistics, ProcessStatistics, RankStatistics, Statistics, Traffic, Wait,
};
use inspect::gpu::GpuSamples;
use recording::sinks::LiveStatistics;

/// The metrics of a session, made anew at each scrape.
#[derive(Debug)]
pub struct Exposition {
    registry: Registry,
}

impl Exposition {
    /// `realtime_offset_ns`: offset from the records' clock to wall time. Called at each scrape: wall time is
    /// set, and goes on while the host sleeps.
    pub fn new(live: LiveStatistics, gpus: GpuSamples, realtime_offset_ns: fn() -> u64) -> Self {
        let mut registry = Registry::with_prefix("ncclflow");
        registry.register_collector(Box::new(Session { live, gpus, realtime_offset_ns }));
        Self { registry }
    }

    /// Encodes them in the OpenMetrics text format.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

#[derive(Debug)]
struct Session {
    live: LiveStatistics,
    gpus: GpuSamples,
    realtime_offset_ns: fn() -> u64,
}

impl Collector for Session {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let statistics = self.live.read();
        let mut families = Families { encoder };
        let version = vec![("version", env!("CARGO_PKG_VERSION"))];
        families.info("build", "The program that serves these metrics.", &version)?;
        loss(&mut families, &statistics)?;
        let ranks = Ranks::new(&statistics);
        ops(&mut families, &ranks)?;
        calls(&mut families, &ranks)?;
        traffic(&mut families, &ranks)?;
        progress(&mut families, &ranks, &statistics, (self.realtime_offset_ns)())?;
        gpu_families::encode(&mut families, &self.gpus)
    }
}

/// Ranks with the values of their labels; the last can stand for all ranks that are not kept apart.
struct Ranks<'a>(Vec<([String; 3], &'a RankStatistics)>);

impl<'a> Ranks<'a> {
    fn new(statistics: &'a Statistics) -> Self {
        let kept = statistics
            .ranks
            .iter()
            .map(|(key, rank)| ([key.comm_name(), key.rank.to_string(), key.pid.to_string()], &**rank));
        let folded = (statistics.folded_ranks > 0)
            .then(|| (std::array::from_fn(|_| OTHER.to_owned()), &statistics.folded));
        Self(kept.chain(folded).collect())
    }

    /// Returns a series for each thing that a rank has.
    fn series<'s, T, V>(
        &'s self,
        things: impl Fn(&'s RankStatistics) -> T,
        label: impl Fn(&mut Labels<'s>, T::Item) -> V,
    ) -> Vec<(Labels<'s>, V)>
    where
        T: IntoIterator,
    {
        let mut series = Vec::new();
        for (rank, statistics) in &self.0 {
            for thing in things(statistics) {
                let mut labels = labels_of(rank);
                let value = label(&mut labels, thing);
                series.push((labels, value));
            }
        }
        series
    }

    /// Returns a series for each thing of a rank's messages of one kind in one direction.
    fn peer_series<'s, T, V>(
        &'s self,
        things: impl Fn(&'s Traffic) -> T,
        label: impl Fn(&mut Labels<'s>, T::Item) -> V,
    ) -> Vec<(Labels<'s>, V)>
    where
        T: IntoIterator,
    {
        let things = &things;
        let of_rank = |rank: &'s RankStatistics| {
            rank.traffic.iter().flat_map(move |(key, one)| things(one).into_iter().map(move |it| (key, it)))
        };
        self.series(of_rank, |labels, ((kind, direction), thing)| {
            labels.extend([("direction", direction.name()), ("peer_kind", kind.name())]);
            label(labels, thing)
        })
    }
}

fn labels_of([comm, rank, pid]: &[String; 3]) -> Labels<'_> {
    vec![("comm", comm), ("rank", rank), ("pid", pid)]
}

fn loss(families: &mut Families<'_>, statistics: &Statistics) -> fmt::Result {
    let processes = &statistics.processes;
    let pids: Vec<String> = processes.keys().map(u32::to_string).collect();
    let of_processes = |value: fn(&ProcessStatistics) -> u64| {
        pids.iter().zip(processes.values()).map(move |(pid, one)| (vec![("pid", pid.as_str())], value(one)))
    };
    let help = "Records of probe hits that came to be decoded.";
    families.counters("records", None, help, of_processes(|process| process.records))?;
    let help = "Records that are missing: buffers were full. Known with the next record of the process, or at \
                the end.";
    families.counters("records_lost", None, help, of_processes(|process| process.lost))?;
    let help = "Records that could not be understood.";
    families.counters("records_undecodable", None, help, [(Labels::new(), statistics.undecodable)])?;
    let help = "Records of ranks that are not counted, because there are too many ranks.";
    families.counters("records_left_out", None, help, [(Labels::new(), statistics.left_out)])?;
    let help = "Records of ranks whose launches are not kept, because there are too many ranks.";
    families.counters("launches_left_out", None, help, [(Labels::new(), statistics.launched_left_out)])?;
    let help = "Records that are in the recording and not in these numbers yet.";
    let behind = u32::try_from(statistics.behind).unwrap_or(u32::MAX);
    families.gauges("records_behind", None, help, [(Labels::new(), f64::from(behind))])?;
    let help = "Ranks without series of their own, because there are too many: they are in the series \
                with the label other.";
    let folded = u32::try_from(statistics.folded_ranks).unwrap_or(u32::MAX);
    families.gauges("folded_ranks", None, help, [(Labels::new(), f64::from(folded))])?;
    let help = "Of them, those of a process that goes on.";
    let of_processes: Vec<(String, f64)> = statistics
        .folded_by_process
        .iter()
        .map(|(pid, ranks)| (pid.to_string(), f64::from(u32::try_from(*ranks).unwrap_or(u32::MAX))))
        .collect();
    let series = of_processes.iter().map(|(pid, ranks)| (vec![("pid", pid.as_str())], *ranks));
    families.gauges("folded_ranks_of_process", None, help, series)
}

fn ops(families: &mut Families<'_>, ranks: &Ranks<'_>) -> fmt::Result {
    let series = |value: fn(&OpStatistics) -> u64| {
        ranks.series(
            |rank| &rank.ops,
            move |labels, (kind, op)| {
                labels.extend([
                    ("coll", kind.coll.as_deref().unwrap_or(OTHER)),
                    ("algorithm", kind.algorithm.unwrap_or("")),
                    ("protocol", kind.protocol.unwrap_or("")),
                ]);
                value(op)
            },
        )
    };
    let help = "Ops that NCCL planned or posted; one counts once, on however many channels it runs.";
    families.counters("ops", None, help, series(|op| op.ops))?;
    let help = "Bytes that the ops were called with: elements times their size.";
    families.counters("op", Some(&Unit::Bytes), help, series(|op| op.bytes))?;
    let help = "Ops whose bytes are not known, and not part of the bytes.";
    families.counters("ops_unsized", None, help, series(|op| op.unsized_ops))?;
    let one = |value: fn(&RankStatistics) -> u64| ranks.series(|rank| [rank], move |_, rank| value(rank));
    let help = "Operations, counted on each channel, that may be incomplete, because records were lost.";
    families.counters("op_channels_incomplete", None, help, one(|rank| rank.incomplete))?;
    let help = "Operations, counted on each channel, that were derived from the work that their plan \
                gives the GPU.";
    families.counters("op_channels_derived", None, help, one(|rank| rank.derived))?;
    let help = "Operations, counted on each channel, that came too late to know whether they had been counted; \
         they were not counted again.";
    families.counters("op_channels_late", None, help, one(|rank| rank.late))
}

fn calls(families: &mut Families<'_>, ranks: &Ranks<'_>) -> fmt::Result {
    let series = |value: fn(&CallStatistics) -> u64| {
        ranks.series(
            |rank| &rank.calls,
            move |labels, (function, call)| {
                labels.push(("function", function));
                value(call)
            },
        )
    };
    let help = "Calls of NCCL's API (with --level api).";
    families.counters("calls", None, help, series(|call| call.calls))?;
    let help = "Bytes that calls of NCCL's API gave: elements times their size (with --level api).";
    families.counters("call", Some(&Unit::Bytes), help, series(|call| call.bytes))?;
    let help = "Calls of NCCL's API that returned an error (with --returns).";
    families.counters("call_errors", None, help, series(|call| call.errors))?;
    let host = ranks.series(
        |rank| rank.calls.iter().filter(|(_, call)| call.host.count() > 0),
        |labels, (function, call)| {
            labels.push(("function", function));
            &call.host
        },
    );
    families.histograms("call_host", "Measured: time on the calling thread (with --returns).", host)
}

fn traffic(families: &mut Families<'_>, ranks: &Ranks<'_>) -> fmt::Result {
    let planned = ranks.peer_series(
        |traffic| {
            let kinds = [("exact", traffic.planned_exact), ("capacity", traffic.planned_capacity)];
            kinds.into_iter().filter(|(_, bytes)| *bytes > 0)
        },
        |labels, (kind, bytes)| {
            labels.push(("bytes_kind", kind));
            bytes
        },
    );
    let help = "Planned: bytes of messages between a rank and its peers; capacity: an upper bound.";
    families.counters("planned", Some(&Unit::Bytes), help, planned)?;
    let measured = |value: fn(&Traffic) -> u64| {
        let measured = |traffic| Some(traffic).filter(|traffic: &&Traffic| traffic.ended > 0);
        ranks.peer_series(measured, move |_, traffic| value(traffic))
    };
    let help = "Measured: messages of the network proxy that came to their end (with --level steps).";
    families.counters("messages", None, help, measured(|traffic| traffic.ended))?;
    let help = "Measured: bytes of messages whose size was seen (with --level steps, NCCL 2.27 and later).";
    families.counters("message", Some(&Unit::Bytes), help, measured(|traffic| traffic.bytes_measured))?;
    let durations =
        ranks.peer_series(|traffic| Some(&traffic.times).filter(|times| times.count() > 0), |_, times| times);
    let help = "Measured: from a message's start to its end (with --level steps).";
    families.histograms("message_duration", help, durations)?;
    let waits = ranks.peer_series(
        |traffic| Wait::ALL.into_iter().zip(&traffic.waits).filter(|(_, waits)| waits.count() > 0),
        |labels, (wait, waits)| {
            labels.push(("wait", wait.name()));
            waits
        },
    );
    let help = "Derived from measured moments: what a message waited for (with --level steps).";
    families.histograms("wait", help, waits)
}

fn progress(
    families: &mut Families<'_>,
    ranks: &Ranks<'_>,
    statistics: &Statistics,
    realtime_offset_ns: u64,
) -> fmt::Result {
    let launched = statistics.ranks.keys().zip(&ranks.0).filter_map(|(key, (rank, _))| {
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
        Some((labels_of(rank), statistics.launched(key)? as f64))
    });
    let help = "NCCL's own count of the collectives that a rank launched, since the communicator was made.";
    families.gauges("launched_collectives", None, help, launched)?;
    let seen = ranks.series(
        |rank| Some(rank.last_ns).filter(|ns| *ns > 0),
        |_, ns| seconds(ns.saturating_add(realtime_offset_ns)),
    );
    let help = "When something was last seen of a rank.";
    families.gauges("last_seen_timestamp", Some(&Unit::Seconds), help, seen)
}
