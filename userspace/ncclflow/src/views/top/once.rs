//! `top --once`: the table as plain text, or everything as JSON (docs/OUTPUT.md).

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use serde::Serialize;

use super::{
    lag::Lag,
    rates::{RankRates, Rates, Snapshot, Subject},
    rows::Row,
};
use flow::{
    schema::GpuRow,
    session::Level,
    text::{ago, bytes, column_widths, joined, number},
};

pub(super) const HEADINGS: [&str; 8] = ["COMM", "RANK", "PID", "OPS/S", "BYTES/S", "SEEN", "LAG", "MOST"];

/// Prints the rows, a line each, with a heading; columns are as wide as they need to be.
pub fn print_table(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let headings = HEADINGS.map(str::to_owned);
    let lines: Vec<[String; 8]> = std::iter::once(headings).chain(rows.iter().map(cells)).collect();
    let widths = column_widths(&lines);
    for line in &lines {
        let mut text = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(text, "{cell:<width$}  ");
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

fn cells(row: &Row) -> [String; 8] {
    let most = row.kinds.iter().take(2);
    let most = most.map(|kind| format!("{} {}/s", kind.label(), number(kind.ops_per_s)));
    let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    [
        dash(row.comm.clone()),
        dash(row.rank.clone()),
        dash(row.pid.clone()),
        number(row.ops_per_s),
        bytes_cell(row),
        ago(row.idle_s),
        dash(row.lag.map(Lag::label).unwrap_or_default()),
        dash(joined(most, ", ")),
    ]
}

/// Formats bytes, with a mark where there were more.
pub(super) fn bytes_cell(row: &Row) -> String {
    let least = if row.bytes_are_least { ">" } else { "" };
    format!("{least}{}", bytes(row.bytes_per_s))
}

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
        let ranks = rates.ranks.iter().map(|rates| RankLine {
            comm_hash: rates.key.map(|key| key.comm_name()),
            rank: rates.key.map(|key| key.rank),
            n_ranks: rates.key.map(|_| rates.n_ranks),
            pid: rates.key.map(|key| key.pid),
            rates,
        });
        Self {
            ncclflow: env!("CARGO_PKG_VERSION"),
            schema: 1,
            host: &subject.host,
            level: subject.level,
            interval_s: rates.interval_s,
            processes: processes.collect(),
            ranks: ranks.collect(),
            folded_ranks: rates.folded_ranks,
            records_lost: rates.lost,
            records_undecodable: rates.undecodable,
            gpus: now.gpus.iter().map(|row| &**row).collect(),
        }
    }
}
