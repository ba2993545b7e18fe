//! The tables of one recording.

use flow::{
    schema::{ApiCall, ClockReport, FleetHost, MessageRow, MessageSums, Op, OtherCallRow},
    session::{SessionReport, SessionState, TargetReport, WindowReport},
};
use std::{collections::HashMap, io, mem, sync::Arc};

use anyhow::{Context as _, Result, bail};
use nccl_library::nccl::Name;

use super::{
    file::Format,
    partition::{Common, Counts, Partition},
    table::{Layout, Table},
};
use recording::sinks::{OutputDir, Sink};

/// Job of processes whose job is not known.
const NO_JOB: &str = "unknown";

/// Most jobs and hosts of a recording; containers have host names of their own.
pub(super) const MAX_PARTITIONS: usize = 1024;

/// Most files that are written at a time. Hosts and jobs beyond that get more and smaller ones.
const MAX_OPEN_FILES: usize = 256;

/// Rows between two looks at the memory of waiting rows.
const LOOK_EVERY: u32 = 4096;

/// Most memory of rows that wait to be written, in bytes.
const MEMORY: usize = 128 << 20;

/// Facts about reading a recording.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ParquetInput {
    /// The recording has no end.
    pub is_cut: bool,
    pub records: u64,
    /// Records that could not be decoded.
    pub undecodable: u64,
    /// Blocks that are damaged or unknown.
    pub blocks_left_out: u64,
}

/// Totals written of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ParquetTotals {
    /// Rows in all tables.
    pub rows: u64,
    pub files: u64,
    pub bytes: u64,
}

/// Formats of tables, the same for all recordings.
#[derive(Clone, Debug)]
pub(super) struct ParquetFormats(Arc<[(Layout, Format)]>);

impl ParquetFormats {
    pub(super) fn new() -> Result<Self> {
        let formats = Table::ALL.into_iter().map(|table| {
            let layout = Layout::of(table);
            let format = Format::of(&layout).context("the columns of a Parquet table")?;
            Ok((layout, format))
        });
        Ok(Self(formats.collect::<Result<_>>()?))
    }
}

/// The tables of a recording.
#[derive(Debug)]
pub(super) struct ParquetTables {
    common: Arc<Common>,
    report: SessionReport,
    /// Jobs by process.
    jobs: HashMap<u32, String>,
    partitions: Vec<(String, String, Partition)>,
    /// Partition of a process's rows, by the host name in them.
    places: HashMap<u32, Vec<(Name, usize)>>,
    /// Rows until the memory is looked at again.
    until_look: u32,
    /// A write has failed; nothing more is written.
    failed: bool,
    errors: Vec<String>,
}

impl ParquetTables {
    /// Begins tables in the folder, for the recording that has this `session.json`: that of its end, or else
    /// of its beginning.
    pub(super) fn new(dir: OutputDir, formats: &ParquetFormats, report: &SessionReport) -> Self {
        let common = Arc::new(Common {
            dir,
            formats: Arc::clone(&formats.0),
            recording: recording_name(report),
            offset_ns: report.offset_ns(),
        });
        Self {
            common,
            jobs: jobs(report),
            report: report.clone(),
            partitions: Vec::new(),
            places: HashMap::new(),
            until_look: LOOK_EVERY,
            failed: false,
            errors: Vec::new(),
        }
    }

    /// Writes the remaining rows, when all have come. Memory and open files are free then.
    pub(super) fn complete(&mut self) -> Result<()> {
        if self.failed {
            bail!("{}", self.errors.first().map_or("writing Parquet tables failed", String::as_str));
        }
        if self.partitions.is_empty() {
            let host = self.report.host.clone();
            self.partition_of(NO_JOB, &host)?;
        }
        for (_, _, partition) in &mut self.partitions {
            partition.write_all(&self.report).context("writing Parquet tables")?;
        }
        Ok(())
    }

    /// Writes the facts about reading the recording. After [`complete`](Self::complete).
    pub(super) fn finish(&mut self, input: &ParquetInput) -> Result<()> {
        let state = if input.is_cut { SessionState::Recording } else { self.report.state };
        for (_, _, partition) in &mut self.partitions {
            let host = FleetHost {
                recording: self.common.recording.clone(),
                ncclflow: stated(&self.report.ncclflow),
                kernel: stated(&self.report.kernel),
                level: stated(self.report.level_name()),
                state: stated(state.name()),
                records: input.records,
                records_not_understood: input.undecodable,
                blocks_left_out: input.blocks_left_out,
                numbers_left_out: partition.counts.too_large,
            };
            let clock = self.report.known_clock().unwrap_or_else(no_clock);
            partition.write_host(&host, &clock, &self.report.loss).context("writing Parquet tables")?;
        }
        Ok(())
    }

    /// Gives the files their names: readers see them from now on. Files without a name when this is dropped
    /// are removed.
    pub(super) fn publish(&mut self) -> Result<ParquetTotals> {
        let mut totals = ParquetTotals::default();
        for (job, host, partition) in &mut self.partitions {
            partition.publish().map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => anyhow::anyhow!(
                    "two recordings of host `{host}`, job `{job}`, began at the same moment: is one of them a copy of the other?"
                ),
                _ => anyhow::Error::new(error).context("naming Parquet files"),
            })?;
            let Counts { rows, files, bytes, .. } = partition.counts;
            totals.rows += rows;
            totals.files += files;
            totals.bytes += bytes;
        }
        Ok(totals)
    }

    fn put(&mut self, pid: u32, host: &Name, rows: u32, put: impl FnOnce(&mut Partition) -> io::Result<()>) {
        if self.failed {
            return;
        }
        if let Err(error) = self.partition(pid, host).and_then(put).and_then(|()| self.look(rows)) {
            self.failed = true;
            self.errors.push(format!("writing Parquet tables: {error}"));
        }
    }

    fn partition(&mut self, pid: u32, host: &Name) -> io::Result<&mut Partition> {
        let known = self.places.get(&pid).into_iter().flatten().find(|(name, _)| name == host);
        let place = if let Some((_, place)) = known {
            *place
        } else {
            let job = self.jobs.get(&pid).map_or(NO_JOB, String::as_str).to_owned();
            let place = self.partition_of(&job, host)?;
            self.places.entry(pid).or_default().push((host.clone(), place));
            place
        };
        let partition = self.partitions.get_mut(place).map(|(_, _, partition)| partition);
        partition.ok_or_else(|| io::Error::other("a partition is missing"))
    }

    fn partition_of(&mut self, job: &str, host: &str) -> io::Result<usize> {
        if let Some(place) = self.partitions.iter().position(|(of, at, _)| of == job && at == host) {
            return Ok(place);
        }
        if self.partitions.len() >= MAX_PARTITIONS {
            return Err(io::Error::other(format!(
                "the recording has more than {MAX_PARTITIONS} jobs and hosts"
            )));
        }
        let partition = Partition::new(&self.common, job, host)?;
        self.partitions.push((job.to_owned(), host.to_owned(), partition));
        Ok(self.partitions.len() - 1)
    }

    /// Writes rows while those that wait take too much memory.
    fn look(&mut self, rows: u32) -> io::Result<()> {
        self.until_look = self.until_look.saturating_sub(rows);
        if self.until_look > 0 {
            return Ok(());
        }
        self.until_look = LOOK_EVERY;
        while self.partitions.iter().map(|(_, _, partition)| partition.bytes()).sum::<usize>() > MEMORY {
            let open: usize = self.partitions.iter().map(|(_, _, partition)| partition.open_files()).sum();
            let partitions = self.partitions.iter_mut().map(|(_, _, partition)| partition);
            let Some(largest) = partitions.max_by_key(|partition| partition.bytes()) else { break };
            let before = largest.bytes();
            largest.write_largest()?;
            if open >= MAX_OPEN_FILES {
                largest.finish_files()?;
            }
            if largest.bytes() >= before {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for ParquetTables {
    fn drop(&mut self) {
        self.partitions.iter_mut().for_each(|(_, _, partition)| partition.discard());
    }
}

fn no_clock() -> ClockReport {
    ClockReport { clock: "CLOCK_MONOTONIC".into(), ..ClockReport::default() }
}

/// Returns a text of a report; `None` where the report lacks it.
fn stated(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns a name that no other recording of the host has: when it began, and which window of it this is.
fn recording_name(report: &SessionReport) -> String {
    let began = report.clock.started_realtime_ns;
    match &report.window {
        None => format!("{began:020}"),
        Some(WindowReport { number, opened_unix_ms, .. }) => {
            format!("{began:020}-w{number}-{opened_unix_ms}")
        }
    }
}

/// Returns the known names of jobs, by process.
fn jobs(report: &SessionReport) -> HashMap<u32, String> {
    let job = |target: &TargetReport| Some((target.pid, target.job.as_ref()?.name.clone()?));
    report.targets.iter().filter_map(job).collect()
}

impl Sink for ParquetTables {
    fn op(&mut self, op: &Op) {
        self.put(op.row.pid, &op.row.host, 1, |partition| partition.op(op));
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        let rows = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        self.put(op.row.pid, &op.row.host, rows, |partition| partition.messages(op, messages));
    }

    fn message_sums(&mut self, op: &Op, sums: &[MessageSums]) {
        self.put(op.row.pid, &op.row.host, 0, |partition| partition.message_sums(op, sums));
    }

    fn call(&mut self, call: &ApiCall) {
        self.put(call.row.pid, &call.row.host, 1, |partition| partition.call(call));
    }

    fn other_call(&mut self, row: &OtherCallRow) {
        self.put(row.pid, &row.host, 1, |partition| partition.other_call(row));
    }

    fn take_errors(&mut self) -> Vec<String> {
        mem::take(&mut self.errors)
    }
}
