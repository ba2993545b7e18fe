//! `ncclflow dump`

use std::{
    fs::File,
    io::{IsTerminal as _, Read as _, Write as _, stderr, stdout},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use super::args::DumpArgs;
use crate::{
    dump::{self, Choice, DumpOptions, DumpReport, Progress, SCHEMA, State},
    memory::ScanLimits,
    symbols::DebugFiles,
};

/// A communicator is stuck.
const STUCK: u8 = 3;
/// There is no telling.
const UNKNOWN: u8 = 4;
/// Longest file that is merged.
const MAX_FILE: u64 = 1 << 30;

pub(super) fn run(args: &DumpArgs) -> Result<ExitCode> {
    let mut reports = Vec::new();
    if args.all || !args.pids.is_empty() {
        let choice = if args.all { Choice::All } else { Choice::Pids(args.pids.clone()) };
        let options = DumpOptions {
            interval: args.interval,
            first_only: args.first,
            limits: ScanLimits {
                bytes: args.max_gib.saturating_mul(1 << 30),
                time: Duration::from_secs(args.max_seconds),
            },
            debug_files: DebugFiles::new(args.debug.debug_file.clone(), args.debug.debug_dir.clone()),
            stacks: args.stacks,
        };
        let mut bar = ProgressLine::new();
        let report = dump::dump(&choice, &options, &mut |progress| bar.show(progress));
        bar.clear();
        reports.push(report?);
    }
    for path in &args.merge {
        reports.push(read(path).with_context(|| format!("reading `{}`", path.display()))?);
    }
    let report = if args.merge.is_empty() { reports.pop().unwrap_or_default() } else { dump::merge(reports) };
    let mut out = stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", dump::render(&report))?;
    }
    out.flush()?;
    if report.communicators.is_empty()
        && !report.processes.is_empty()
        && let Some(errors) =
            report.processes.iter().map(|process| process.error.as_deref()).collect::<Option<Vec<_>>>()
    {
        bail!("nothing could be read: {}", errors.join("; "));
    }
    Ok(match report.state() {
        State::Healthy => ExitCode::SUCCESS,
        State::Stuck => ExitCode::from(STUCK),
        State::Unknown => ExitCode::from(UNKNOWN),
    })
}

/// How far a scan is, on a line of the terminal that is written over; nothing where standard error is no terminal.
struct ProgressLine {
    is_terminal: bool,
    is_shown: bool,
}

impl ProgressLine {
    /// Scans that are over before are not worth a line.
    const PATIENCE: Duration = Duration::from_secs(1);

    fn new() -> Self {
        Self { is_terminal: stderr().is_terminal(), is_shown: false }
    }

    fn show(&mut self, progress: &Progress<'_>) {
        if !self.is_terminal || progress.scan.elapsed < Self::PATIENCE {
            return;
        }
        let scan = progress.scan;
        let gib = |bytes: u64| format!("{}.{} GiB", bytes >> 30, ((bytes & 0x3fff_ffff) * 10) >> 30);
        let percent = scan.passed_bytes.saturating_mul(100).checked_div(scan.mapped_bytes).unwrap_or(100);
        // Nobody may be there to read it.
        let _ = write!(
            stderr(),
            "\r\x1b[Kprocess {}: {percent}% of {} looked through, {} read, {} s",
            progress.process.pid(),
            gib(scan.mapped_bytes),
            gib(scan.scanned_bytes),
            scan.elapsed.as_secs()
        );
        self.is_shown = true;
    }

    fn clear(&self) {
        if self.is_shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

fn read(path: &Path) -> Result<DumpReport> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE).read_to_string(&mut text)?;
    let report: DumpReport = serde_json::from_str(&text)?;
    if report.schema != SCHEMA {
        bail!("its schema is {}, and this ncclflow reads {SCHEMA}", report.schema);
    }
    Ok(report)
}
