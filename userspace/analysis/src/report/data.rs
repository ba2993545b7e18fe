//! The data of the page, as its scripts read it. Columns instead of rows, where there are many: a page has 5
//! MB at most for 64 ranks and 10,000 collectives.
//!
//! Moments are microseconds after `t0`, which is Unix time. Durations are microseconds, except where a key
//! ends with `Ns`. A rank is the index of its communicator in `comms` and its rank there.

use serde::Serialize;

use super::{Section, code::Sums, kinds::KindKey, rates::RatesData, timeline::TimelineData};
use crate::slow::IterationParts;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Data {
    pub(super) format: u32,
    pub(super) made_by: String,
    pub(super) made_unix_ms: u64,
    pub(super) open: Option<Section>,
    /// Unix time in nanoseconds, as text: its last digits count.
    pub(super) t0: String,
    pub(super) span_us: u64,
    pub(super) verdict: VerdictData,
    pub(super) jobs: Vec<JobData>,
    pub(super) hosts: Vec<String>,
    pub(super) comms: Vec<CommData>,
    pub(super) wait_names: Vec<&'static str>,
    pub(super) kinds: Vec<KindData>,
    pub(super) timeline: TimelineData,
    /// The longest ops, not joined with others.
    pub(super) longest: Vec<LongOp>,
    pub(super) rates: RatesData,
    pub(super) iterations: Vec<ProcessIterationsData>,
    /// Lines of code; empty if stacks were not recorded.
    pub(super) code: Vec<CodeData>,
    pub(super) sources: Vec<SourceData>,
    /// Sentences that say what was summed up, and what was left out.
    pub(super) summed_up: Vec<String>,
    /// Sentences that say what was not seen.
    pub(super) not_seen: Vec<String>,
    pub(super) rows: crate::export::RowCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    Fault,
    Slow,
    Good,
    /// No fault was found, and not everything was seen.
    Open,
    Unknown,
}

#[derive(Debug, Serialize)]
pub(super) struct VerdictData {
    pub(super) level: Level,
    pub(super) sentence: String,
    /// Ranks that the sentence leads to, each with its communicator.
    pub(super) ranks: Vec<(usize, i32)>,
    /// Late launches: communicator, rank, begin and length.
    pub(super) stalls: Vec<(usize, i32, u64, u64)>,
    pub(super) findings: Vec<FindingData>,
    pub(super) notes: Vec<String>,
}

/// A job: what `check` says of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct JobData {
    pub(super) name: Option<String>,
    pub(super) consistent: bool,
    pub(super) sentence: String,
    /// Its communicators.
    pub(super) comms: Vec<usize>,
    /// Where iterations spend their time: several where there are windows, or groups of ranks that share
    /// nothing.
    pub(super) iterations: Vec<JobIterationsData>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct JobIterationsData {
    pub(super) count: u64,
    /// Usual length.
    pub(super) typical_ms: Option<f64>,
    /// Ranks of the job that hold it back.
    pub(super) marked: Vec<i32>,
    pub(super) parts: Vec<IterationParts>,
    pub(super) series: SeriesData,
}

#[derive(Debug, Serialize)]
pub(super) struct FindingData {
    pub(super) comm: Option<usize>,
    pub(super) window: Option<String>,
    pub(super) kind: serde_json::Value,
    /// Number of the operation, as in rows.
    pub(super) seq: Option<u64>,
    pub(super) text: String,
    pub(super) ranks: Vec<i32>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CommData {
    pub(super) name: String,
    pub(super) comm_name: Option<String>,
    pub(super) n_ranks: i32,
    pub(super) collectives: u64,
    pub(super) ranks: Vec<RankData>,
    pub(super) rings: Vec<RingData>,
    pub(super) trees: Vec<TreeData>,
    pub(super) links: Vec<LinkData>,
    pub(super) delays: Vec<DelayData>,
    pub(super) messages_judged: u64,
    pub(super) messages_not_judged: u64,
    /// Number of ops by the outcome of their messages.
    pub(super) measured: std::collections::BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RankData {
    pub(super) rank: i32,
    pub(super) host: usize,
    pub(super) pid: u32,
    pub(super) job_rank: Option<u32>,
    pub(super) node: Option<u32>,
    pub(super) gpu: Option<String>,
    pub(super) bus_id: Option<String>,
    pub(super) collectives: u64,
    pub(super) p2p: u64,
    pub(super) calls: u64,
    /// Ops that were not seen whole, because records were lost.
    pub(super) incomplete: u64,
    pub(super) own_gpu_ns: Option<u64>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct RingData {
    pub(super) channels: Vec<u32>,
    /// Ranks in the direction of the data; several paths where ranks between them are not known.
    pub(super) paths: Vec<Vec<i32>>,
    pub(super) closed: bool,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct TreeData {
    pub(super) channels: Vec<u32>,
    /// Edges: child and parent.
    pub(super) edges: Vec<(i32, i32)>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LinkData {
    pub(super) rank: i32,
    pub(super) peer: i32,
    pub(super) op: &'static str,
    pub(super) transport: String,
    pub(super) channels: Vec<u32>,
    pub(super) messages: u64,
    pub(super) ended: u64,
    /// Planned bytes: exact ones, and capacities.
    pub(super) exact: u64,
    pub(super) capacity: u64,
    /// Measured bytes, and number of messages whose size was seen.
    pub(super) bytes: u64,
    pub(super) sized: u64,
    /// Bytes of messages that were measured to their end: measured, or else planned.
    pub(super) moved: u64,
    pub(super) busy_ns: u64,
    pub(super) p50_ns: Option<u64>,
    pub(super) p99_ns: Option<u64>,
    pub(super) max_ns: Option<u64>,
    pub(super) waits_ns: [u64; 8],
}

/// Time that a rank waited for a peer, by `check`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DelayData {
    pub(super) rank: i32,
    pub(super) peer: i32,
    pub(super) data_ns: u64,
    pub(super) slot_ns: u64,
    pub(super) network_ns: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KindData {
    #[serde(flatten)]
    pub(super) key: KindKey,
    pub(super) ops: u64,
    pub(super) measured: u64,
    pub(super) p50_ns: Option<u64>,
    pub(super) p99_ns: Option<u64>,
    pub(super) max_ns: Option<u64>,
    pub(super) total_ns: u64,
    pub(super) waits_ns: [u64; 8],
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct LongOp {
    pub(super) comm: usize,
    pub(super) rank: i32,
    pub(super) seq: u64,
    pub(super) kind: usize,
    pub(super) at: u64,
    pub(super) us: u64,
    pub(super) waits: [u64; 8],
    pub(super) code: Option<usize>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProcessIterationsData {
    pub(super) host: usize,
    pub(super) pid: u32,
    pub(super) rank: i32,
    pub(super) comm: usize,
    /// Collectives of an iteration; `None` if no part of the process's collectives recurs.
    pub(super) period: Option<usize>,
    pub(super) iterations: u64,
    pub(super) p50_us: Option<u64>,
    pub(super) p99_us: Option<u64>,
    #[serde(flatten)]
    pub(super) series: SeriesData,
}

/// Iterations along time. Points of several iterations together, where there are many: begin, number, and the
/// mean and the longest time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SeriesData {
    pub(super) at: Vec<u64>,
    pub(super) n: Vec<u64>,
    pub(super) mean_us: Vec<u64>,
    pub(super) max_us: Vec<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CodeData {
    /// The innermost line outside of installed libraries, or else the innermost.
    pub(super) line: String,
    /// Frames from the innermost outwards.
    pub(super) frames: Vec<String>,
    pub(super) unknown: Option<String>,
    #[serde(flatten)]
    pub(super) sums: Sums,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SourceData {
    pub(super) path: String,
    pub(super) host: String,
    pub(super) level: String,
    pub(super) state: String,
    pub(super) ncclflow: String,
    pub(super) nccl: Vec<String>,
    pub(super) from_unix_ms: Option<u64>,
    pub(super) until_unix_ms: Option<u64>,
    pub(super) records: u64,
    pub(super) processes: usize,
    pub(super) loss: Vec<(String, u64)>,
    /// Times in which records are missing: begin, end, number.
    pub(super) gaps: Vec<(u64, u64, u64)>,
    pub(super) notes: Vec<String>,
}
