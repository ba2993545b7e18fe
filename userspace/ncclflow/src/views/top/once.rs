//! `top --once`: the table as plain text, or everything as JSON (docs/OUTPUT.md).

use std::io::{self, Write};

use serde::Serialize;

use super::{
    columns::{self, Column},
    rates::{KindRates, RankRates, Rates, Snapshot, Subject},
    rows::Row,
};
use flow::{
    schema::GpuRow,
    session::Level,
    text::{ago, bytes, joined, number},
};

/// Columns of the table.
pub(super) const COLUMNS: [Column; 10] = [
    columns::text("JOB", 0, 6).optional(),
    columns::text("COMM", 9, 1),
    columns::text("RANK", 5, 0).optional(),
    columns::text("PID", 7, 5),
    columns::text("NAME", 0, 7).optional(),
    columns::number("OPS/S", 6, 2),
    columns::number("BYTES/S", 9, 4),
    columns::number("SEEN", 4, 3),
    // As wide as a mark is: no column moves when one appears.
    columns::text("WAITED FOR", "by receivers".len(), 0),
    columns::cut("MOST", 8),
];

/// Indexes into [`COLUMNS`].
pub(super) const NAME: usize = 4;
pub(super) const WAITED_FOR: usize = 8;
pub(super) const MOST: usize = 9;

/// Prints the rows, a line each, with a heading. Columns that do not fit into `width` are left out.
pub fn print_table(rows: &[Row], width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let lines: Vec<[String; 10]> = rows.iter().map(|row| cells(row, |_| row.comm.clone())).collect();
    let shown = columns::chosen(&COLUMNS, &lines, width.unwrap_or(usize::MAX), 2);
    let headings = COLUMNS.map(|column| column.heading.to_owned());
    for line in std::iter::once(&headings).chain(&lines) {
        let cells = shown.iter().filter_map(|&(at, width)| {
            let (column, cell) = (COLUMNS.get(at)?, line.get(at)?);
            let cell = if cell.is_empty() { "-" } else { cell };
            Some(columns::padded(column, cell, width))
        });
        writeln!(out, "{}", joined(cells, "  ").trim_end())?;
    }
    Ok(())
}

/// Returns the cells of a row. `comm` writes the communicator.
pub(super) fn cells(row: &Row, comm: impl FnOnce(&Row) -> String) -> [String; 10] {
    [
        row.job.clone(),
        comm(row),
        row.rank.clone(),
        row.pid.clone(),
        row.name.clone(),
        number(row.ops_per_s),
        bytes_cell(row),
        if row.has_exited { "gone".to_owned() } else { ago(row.idle_s) },
        row.waited_for(),
        mix(&row.kinds, usize::MAX),
    ]
}

/// Lists the kinds of op with their shares of the ops of the interval, or of all ops if it had none, in as
/// many columns as there are.
pub(super) fn mix(kinds: &[KindRates], room: usize) -> String {
    let total: f64 = kinds.iter().map(|kind| kind.ops_per_s).sum();
    let mut shares: Vec<(String, f64)> = Vec::new();
    for kind in kinds.iter().filter(|kind| total == 0.0 || kind.ops_per_s > 0.0) {
        let (whole, algorithm) = (kind.label(), kind.algorithm_and_protocol());
        let has_room = whole.len() + " 100%".len() <= room;
        let label = if has_room || algorithm.is_empty() { whole } else { algorithm };
        match shares.iter_mut().find(|(known, _)| *known == label) {
            Some((_, ops_per_s)) => *ops_per_s += kind.ops_per_s,
            None => shares.push((label, kind.ops_per_s)),
        }
    }
    let share = |(label, ops_per_s): (String, f64)| {
        if total > 0.0 { format!("{label} {:.0}%", ops_per_s / total * 100.0) } else { label }
    };
    columns::fitting(shares.into_iter().map(share), room)
}

/// Formats bytes, with a mark where there were more.
pub(super) fn bytes_cell(row: &Row) -> String {
    let least = if row.bytes_are_least { ">" } else { "" };
    format!("{least}{}", bytes(row.bytes_per_s))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TopReport<'a> {
    ncclflow: &'static str,
    schema: u32,
    host: &'a str,
    level: Option<Level>,
    /// Length of the interval that the rates are over.
    #[serde(rename = "intervalSeconds")]
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
    /// Name of its job: that of Slurm or the user, or of its first process.
    job: Option<String>,
    nccl: &'a str,
    exited: bool,
    records: u64,
    lost: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RankLine<'a> {
    comm_hash: Option<String>,
    rank: Option<i32>,
    n_ranks: Option<i32>,
    pid: Option<u32>,
    #[serde(flatten)]
    rates: &'a RankRates,
}

impl<'a> TopReport<'a> {
    pub fn new(subject: &'a Subject, now: &'a Snapshot, rates: &'a Rates) -> Self {
        let jobs = subject.jobs(rates);
        let processes = subject.processes.iter().map(|(&pid, process)| {
            let seen = now.statistics.processes.get(&pid).copied().unwrap_or_default();
            ProcessLine {
                pid,
                name: &process.member.program,
                job: jobs.get(&pid).cloned(),
                nccl: &process.nccl,
                exited: process.has_exited,
                records: seen.records,
                lost: seen.lost,
            }
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
            schema: 2,
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
