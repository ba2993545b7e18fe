//! Tables for fleets: Parquet files, partitioned by job and host, that DuckDB, Spark and others read as they are (docs/PARQUET.md).
//!
//! The columns are those of the schema's rows. Rows wait in memory until they are a row group, which is sorted and written; what
//! waits is bounded, over all tables. Files get their names at the end, so that readers never see half of a recording.

mod file;
mod links;
mod names;
mod partition;
mod report;
mod rows;
mod table;

use std::{
    collections::BTreeMap,
    io, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use flow::schema::{ApiCall, ClockReport, FleetHost, MessageRow, Op, OtherCallRow};

use self::{
    file::Format,
    partition::{Common, Counts, Partition},
    report::Report,
    table::{Layout, Table},
};
use super::{output_dir::OutputDir, sink::Sink};

/// Job of processes of which none is known.
const NO_JOB: &str = "unknown";

/// Hosts of a recording: containers have names of their own.
const MAX_PARTITIONS: usize = 1024;

/// Rows after which the memory of those that wait is looked at.
const LOOK_EVERY: u32 = 4096;

/// How tables are written.
#[derive(Clone, Debug)]
pub struct ParquetOptions {
    /// The partition `job=`; nothing: `unknown`.
    pub job: Option<String>,
    /// Memory of rows that wait to be written, in bytes. One row group of each table can come to it.
    pub memory: usize,
}

impl Default for ParquetOptions {
    fn default() -> Self {
        Self { job: None, memory: 192 << 20 }
    }
}

/// What was read of the recording, for its row in `host`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParquetInput<'a> {
    /// `session.json`: that of the end, or else of the beginning.
    pub report: &'a str,
    /// It has no end.
    pub is_cut: bool,
    pub records: u64,
    /// Records that could not be understood.
    pub undecodable: u64,
    /// Blocks that are damaged or unknown.
    pub blocks_left_out: u64,
}

/// What was written of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParquetTotals {
    /// In all tables.
    pub rows: u64,
    pub files: u64,
    pub bytes: u64,
}

/// The tables of a recording. Rows come to its sinks.
#[derive(Clone, Debug)]
pub struct ParquetTables(Arc<Mutex<Tables>>);

#[derive(Debug)]
struct Tables {
    common: Arc<Common>,
    options: ParquetOptions,
    /// By host.
    partitions: BTreeMap<String, Partition>,
    /// Rows until the memory is looked at again.
    until_look: u32,
    /// Something could not be written; nothing more is.
    failed: bool,
    errors: Vec<String>,
}

impl ParquetTables {
    /// Tables in the folder, of the recording that has begun with the report `session.json`.
    pub fn new(dir: OutputDir, options: ParquetOptions, report: &str) -> Result<Self> {
        let report = Report::parse(report);
        let tables = Table::ALL
            .into_iter()
            .map(|table| {
                let layout = Layout::of(table);
                let format = Format::of(&layout).context("the columns of a Parquet table")?;
                Ok((layout, format))
            })
            .collect::<Result<_>>()?;
        let common =
            Arc::new(Common { dir, tables, recording: report.recording(), offset_ns: report.offset_ns() });
        Ok(Self(Arc::new(Mutex::new(Tables {
            common,
            options,
            partitions: BTreeMap::new(),
            until_look: LOOK_EVERY,
            failed: false,
            errors: Vec::new(),
        }))))
    }

    /// Writes what is left, and gives the files their names.
    pub fn finish(&self, input: &ParquetInput<'_>) -> Result<ParquetTotals> {
        let mut tables = self.lock();
        if let Some(error) = mem::take(&mut tables.errors).into_iter().next() {
            anyhow::bail!(error);
        }
        tables.finish(input).context("writing Parquet tables")
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // Whoever panicked has left rows in memory, and files without a name.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn with_partition(&mut self, host: &str, rows: u32, put: impl FnOnce(&mut Partition) -> io::Result<()>) {
        if self.failed {
            return;
        }
        if let Err(error) = self.partition(host).and_then(put).and_then(|()| self.look(rows)) {
            self.failed = true;
            self.errors.push(format!("writing Parquet tables: {error}"));
        }
    }

    fn partition(&mut self, host: &str) -> io::Result<&mut Partition> {
        if !self.partitions.contains_key(host) {
            if self.partitions.len() >= MAX_PARTITIONS {
                return Err(io::Error::other(format!("the recording has more than {MAX_PARTITIONS} hosts")));
            }
            let job = self.options.job.as_deref().unwrap_or(NO_JOB);
            let partition = Partition::new(&self.common, job, host)?;
            self.partitions.insert(host.to_owned(), partition);
        }
        self.partitions.get_mut(host).ok_or_else(|| io::Error::other("a partition is missing"))
    }

    /// Writes rows while those that wait take too much memory.
    fn look(&mut self, rows: u32) -> io::Result<()> {
        self.until_look = self.until_look.saturating_sub(rows);
        if self.until_look > 0 {
            return Ok(());
        }
        self.until_look = LOOK_EVERY;
        while self.partitions.values().map(Partition::bytes).sum::<usize>() > self.options.memory {
            let Some(largest) = self.partitions.values_mut().max_by_key(|partition| partition.bytes()) else {
                break;
            };
            let before = largest.bytes();
            largest.write_largest()?;
            if largest.bytes() >= before {
                break;
            }
        }
        Ok(())
    }

    fn finish(&mut self, input: &ParquetInput<'_>) -> io::Result<ParquetTotals> {
        let report = Report::parse(input.report);
        if self.partitions.is_empty() {
            let host = report.host.clone().unwrap_or_default();
            self.partition(&host)?;
        }
        for partition in self.partitions.values_mut() {
            partition.write_all()?;
            let host = FleetHost {
                recording: self.common.recording.clone(),
                ncclflow: report.ncclflow.clone(),
                kernel: report.kernel.clone(),
                level: report.level.clone(),
                state: if input.is_cut { Some("recording".to_owned()) } else { report.state.clone() },
                records: input.records,
                records_not_understood: input.undecodable,
                blocks_left_out: input.blocks_left_out,
                numbers_left_out: partition.counts.too_large,
            };
            let clock = report.clock.clone().unwrap_or_else(no_clock);
            partition.finish(&[&host, &clock, &report.loss])?;
        }
        let mut totals = ParquetTotals::default();
        for partition in self.partitions.values_mut() {
            partition.publish()?;
            let Counts { rows, files, bytes, .. } = partition.counts;
            totals.rows += rows;
            totals.files += files;
            totals.bytes += bytes;
        }
        Ok(totals)
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        self.partitions.values_mut().for_each(Partition::discard);
    }
}

fn no_clock() -> ClockReport {
    ClockReport {
        clock: "CLOCK_MONOTONIC".into(),
        started_monotonic_ns: 0,
        started_realtime_ns: 0,
        offset_ns: 0,
        ended_monotonic_ns: None,
    }
}

impl Sink for ParquetTables {
    fn op(&mut self, op: &Op) {
        self.lock().with_partition(&op.row.host, 1, |partition| partition.op(op));
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        let rows = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        self.lock().with_partition(&op.row.host, rows, |partition| partition.messages(op, messages));
    }

    fn call(&mut self, call: &ApiCall) {
        self.lock().with_partition(&call.row.host, 1, |partition| partition.call(call));
    }

    fn other_call(&mut self, row: &OtherCallRow) {
        self.lock().with_partition(&row.host, 1, |partition| partition.other_call(row));
    }

    fn take_errors(&mut self) -> Vec<String> {
        // `finish` tells them, too: they are kept there.
        Vec::new()
    }
}
