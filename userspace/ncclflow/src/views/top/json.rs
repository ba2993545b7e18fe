//! `top --once --json` (docs/OUTPUT.md).

use serde::Serialize;

use super::{
    rates::{RankRates, Rates, Snapshot},
    subject::Subject,
};
use flow::{schema::GpuRow, session::Level, statistics::RankKey};

#[derive(Debug, Serialize)]
pub struct TopReport<'a> {
    ncclflow: &'static str,
    schema: u32,
    host: &'a str,
    level: Option<Level>,
    /// Length of the interval that the rates are over.
    interval_s: f64,
    processes: Vec<ProcessLine<'a>>,
    ranks: Vec<RankLine<'a>>,
    /// Ranks beyond the number that is kept apart; the last of `ranks`, without a communicator, is all of
    /// them.
    folded_ranks: usize,
    records_lost: u64,
    records_undecodable: u64,
    /// The latest row of each GPU of the host, as in `gpus.jsonl`.
    gpus: Vec<&'a GpuRow>,
}

#[derive(Debug, Serialize)]
struct ProcessLine<'a> {
    pid: u32,
    name: &'a str,
    nccl: &'a str,
    records: u64,
    lost: u64,
}

#[derive(Debug, Serialize)]
struct RankLine<'a> {
    #[serde(rename = "commHash")]
    comm_hash: Option<String>,
    rank: Option<i32>,
    #[serde(rename = "nRanks")]
    n_ranks: Option<i32>,
    pid: Option<u32>,
    #[serde(flatten)]
    rates: &'a RankRates,
}

impl<'a> TopReport<'a> {
    pub fn new(subject: &'a Subject, now: &'a Snapshot, rates: &'a Rates) -> Self {
        let processes = subject.processes.iter().map(|(&pid, (name, nccl))| {
            let seen = now.statistics.processes.get(&pid).copied().unwrap_or_default();
            ProcessLine { pid, name, nccl, records: seen.records, lost: seen.lost }
        });
        Self {
            ncclflow: env!("CARGO_PKG_VERSION"),
            schema: 1,
            host: &subject.host,
            level: subject.level,
            interval_s: rates.interval_s,
            processes: processes.collect(),
            ranks: rates.ranks.iter().map(RankLine::new).collect(),
            folded_ranks: rates.folded_ranks,
            records_lost: rates.lost,
            records_undecodable: rates.undecodable,
            gpus: now.gpus.iter().map(|row| &**row).collect(),
        }
    }
}

impl<'a> RankLine<'a> {
    fn new(rank: &'a RankRates) -> Self {
        Self {
            comm_hash: rank.key.as_ref().map(RankKey::comm_name),
            rank: rank.key.map(|key| key.rank),
            n_ranks: rank.key.map(|_| rank.n_ranks),
            pid: rank.key.map(|key| key.pid),
            rates: rank,
        }
    }
}
