//! `ncclflow history`

use std::{io::Write as _, path::Path, process::ExitCode};

use anyhow::{Context as _, Result, bail};

use super::{
    history_args::{HistoryArgs, HistoryFormat},
    terminal, write_json,
};
use analysis::export::RankFiles;
use dump::{
    Choice,
    history::{self, HistoryOptions, HistoryReport},
};
use torch_history::{HistoryState, ProcessHistory};

const DIFFER: u8 = 3;
const UNKNOWN: u8 = 4;
const WAITING: u8 = 5;

pub(super) fn run(args: &HistoryArgs) -> Result<ExitCode> {
    let options = HistoryOptions {
        choice: if args.all { Choice::All } else { Choice::Pids(args.pids.clone()) },
        comm: args.comm.clone(),
        last: args.last,
        debug_files: args.debug.files(),
    };
    let report = history::history(&options)?;
    let mut out = terminal::out();
    if args.json {
        write_json(&mut out, &report)?;
    } else {
        write!(out, "{}", history::render(&report, args.last))?;
    }
    out.flush()?;
    if let Some(why) = why_nothing(&report) {
        bail!("{why}");
    }
    // There is one format.
    if let (Some(HistoryFormat::FlightRecorder), Some(prefix)) = (args.format, &args.output) {
        let count = write_flight_recorder(&report, prefix).context("writing torch's flight recorder")?;
        tell!("{count} files of torch's flight recorder: {}", prefix.display());
    }
    Ok(match report.verdict.state {
        HistoryState::Agree => ExitCode::SUCCESS,
        HistoryState::Differ => ExitCode::from(DIFFER),
        HistoryState::Unknown => ExitCode::from(UNKNOWN),
        HistoryState::Waiting => ExitCode::from(WAITING),
    })
}

/// Writes the file that each process would have dumped itself. Returns their number.
fn write_flight_recorder(report: &HistoryReport, prefix: &Path) -> Result<usize> {
    let rings = history::rings_by_rank(report)?;
    let files = RankFiles::at(prefix)?;
    for (rank, ring) in &rings {
        files.write(*rank, &ring.entries, &ring.groups, ring.library_version.as_deref())?;
    }
    Ok(rings.len())
}

/// Returns why no process has torch's notes.
fn why_nothing(report: &HistoryReport) -> Option<String> {
    let is_read = |process: &&ProcessHistory| {
        process.notes.as_ref().is_some_and(|notes| notes.rings.iter().any(|ring| ring.enabled))
    };
    if report.processes.iter().any(|process| is_read(&process)) {
        return None;
    }
    let why = report.processes.iter().map(|process| {
        let unknown = process.notes.as_ref().and_then(|notes| notes.unknown.clone());
        let why = process.error.clone().or(unknown);
        let why =
            why.unwrap_or_else(|| "it has not loaded torch; `ncclflow dump` reads NCCL itself".to_owned());
        format!("process {}: {why}", process.pid)
    });
    let why = why.collect::<Vec<_>>().join("; ");
    Some(format!("torch's flight recorder could be read in no process: {why}"))
}
