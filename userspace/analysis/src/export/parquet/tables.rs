//! The tables of one recording.

use flow::{
    schema::{ClockReport, FleetHost},
    session::{SessionReport, SessionState, TargetReport, WindowReport},
};
use std::{collections::HashMap, io, sync::Arc};

use anyhow::{Context as _, Result};
use nccl_library::nccl::Name;

use super::{
    file::Format,
    partition::{Common, Counts, Partition},
    table::{Layout, Table},
};
use crate::export::{Row, run::SourceReport};
use recording::sinks::OutputDir;

/// Job of processes whose job is not known.
const NO_JOB: &str = "unknown";

/// Most jobs and hosts of a recording; containers have host names of their own.
pub(super) const MAX_PARTITIONS: usize = 1024;

/// Most files that are written at a time. Hosts and jobs beyond that get more and smaller ones.
const MAX_OPEN_FILES: usize = 256;

/// Rows between two looks at the memory of waiting rows.
const LOOK_EVERY: usize = 4096;

/// Most memory of rows that wait to be written, in bytes.
const MEMORY: usize = 128 << 20;

/// Columns of the tables, the same for all recordings.
pub(super) type Formats = Arc<[(Layout, Format)]>;

pub(super) fn formats() -> Result<Formats> {
    let layouts = Table::ALL.into_iter().map(Layout::of);
    let formats = layouts.map(|layout| Format::of(&layout).map(|format| (layout, format)));
    formats.collect::<Result<_, _>>().context("the columns of a Parquet table")
}

/// The tables of a recording.
#[derive(Debug)]
pub(super) struct ParquetTables {
    common: Arc<Common>,
    /// Jobs by process.
    jobs: HashMap<u32, String>,
    partitions: Vec<Partition>,
    /// Partition of a process's rows, by the host name in them.
    places: HashMap<u32, Vec<(Name, usize)>>,
    /// Rows until the memory is looked at again.
    until_look: usize,
}

impl ParquetTables {
    /// Begins tables in the folder, for the recording that has this `session.json`: that of its end, or else
    /// of its beginning. `offset_ns`: from its times to wall time.
    pub(super) fn new(
        dir: OutputDir,
        formats: &Formats,
        report: &SessionReport,
        offset_ns: Option<u64>,
    ) -> Self {
        Self {
            common: Arc::new(Common::new(dir, formats, recording_name(report), report.clone(), offset_ns)),
            jobs: jobs(report),
            partitions: Vec::new(),
            places: HashMap::new(),
            until_look: LOOK_EVERY,
        }
    }

    /// Writes the remaining rows, when all have come. Memory and open files are free then.
    pub(super) fn complete(&mut self) -> Result<()> {
        if self.partitions.is_empty() {
            let host = self.common.report.host.clone();
            self.partition_of(NO_JOB, &host)?;
        }
        for partition in &mut self.partitions {
            partition.write_all().context("writing Parquet tables")?;
        }
        Ok(())
    }

    /// Writes the facts about reading the recording. After [`complete`](Self::complete).
    pub(super) fn finish(&mut self, source: &SourceReport) -> Result<()> {
        let report = &self.common.report;
        let state = if source.is_cut { SessionState::Recording } else { report.state };
        for partition in &mut self.partitions {
            let host = FleetHost {
                recording: self.common.recording.clone(),
                ncclflow: stated(&report.ncclflow),
                kernel: stated(&report.kernel),
                level: stated(report.level_name()),
                state: stated(state.name()),
                records: source.records,
                records_not_understood: source.undecodable,
                blocks_left_out: source.damaged_blocks.saturating_add(source.unknown_blocks),
                numbers_left_out: partition.counts.too_large,
                clock_against: source.clock.as_ref().map(|(against, _)| against.clone()),
                clock_ahead_ns: source.clock.as_ref().map(|(_, ahead)| ahead.ahead_ns),
                clock_error_ns: source.clock.as_ref().map(|(_, ahead)| ahead.error_ns),
            };
            let no_clock = || ClockReport { clock: "CLOCK_MONOTONIC".into(), ..ClockReport::default() };
            let clock = report.known_clock().cloned().unwrap_or_else(no_clock);
            partition.write_host(&host, &clock, &report.loss).context("writing Parquet tables")?;
        }
        Ok(())
    }

    /// Gives the files their names: readers see them from now on. Files without a name when this is dropped
    /// are removed.
    pub(super) fn publish(&mut self) -> Result<()> {
        for partition in &mut self.partitions {
            partition.publish().map_err(|error| match error.kind() {
                // The later one took the files of the first for those of an export that was killed.
                io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound => anyhow::anyhow!(
                    "two recordings of host `{}`, job `{}`, began at the same moment: is one of them a copy of the other?",
                    partition.host,
                    partition.job
                ),
                _ => anyhow::Error::new(error).context("naming Parquet files"),
            })?;
        }
        Ok(())
    }

    /// Returns the counts of what was written, for each job and host.
    pub(super) fn counts(&self) -> impl Iterator<Item = Counts> {
        self.partitions.iter().map(|partition| partition.counts)
    }

    pub(super) fn row(&mut self, row: Row<'_>) -> io::Result<()> {
        let (pid, host, rows) = match row {
            Row::Op(op) => (op.row.pid, &op.row.host, 1),
            Row::Messages(op, messages) => (op.row.pid, &op.row.host, messages.len()),
            Row::MessageSums(op, _) => (op.row.pid, &op.row.host, 0),
            Row::Call(call) => (call.row.pid, &call.row.host, 1),
            Row::OtherCall(row) => (row.pid, &row.host, 1),
            Row::Stack(_) | Row::Gpu(_) | Row::LaunchThread(_) | Row::ProcessEnded(_) => return Ok(()),
        };
        self.partition(pid, host)?.row(row)?;
        self.look(rows)
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
        self.partitions.get_mut(place).ok_or_else(|| io::Error::other("a partition is missing"))
    }

    fn partition_of(&mut self, job: &str, host: &str) -> io::Result<usize> {
        if let Some(place) = self.partitions.iter().position(|known| known.job == job && known.host == host) {
            return Ok(place);
        }
        if self.partitions.len() >= MAX_PARTITIONS {
            return Err(io::Error::other(format!(
                "the recording has more than {MAX_PARTITIONS} jobs and hosts"
            )));
        }
        self.partitions.push(Partition::new(&self.common, job, host));
        Ok(self.partitions.len() - 1)
    }

    /// Writes rows while those that wait take too much memory.
    fn look(&mut self, rows: usize) -> io::Result<()> {
        self.until_look = self.until_look.saturating_sub(rows);
        if self.until_look > 0 {
            return Ok(());
        }
        self.until_look = LOOK_EVERY;
        while self.partitions.iter().map(Partition::bytes).sum::<usize>() > MEMORY {
            let open: usize = self.partitions.iter().map(Partition::open_files).sum();
            let Some(largest) = self.partitions.iter_mut().max_by_key(|partition| partition.bytes()) else {
                break;
            };
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
        self.partitions.iter_mut().for_each(Partition::discard);
    }
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
