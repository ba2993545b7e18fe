//! `ncclflow dump`

use std::{io::Write as _, path::Path, process::ExitCode, time::Duration};

use anyhow::{Result, bail};

use super::{
    args::DumpArgs,
    merge,
    progress::ProgressLine,
    terminal::{self, Mood},
    write_json,
};
use analysis::export::RankFiles;
use dump::{self, Choice, DumpOptions, DumpReport, RecorderDumps, State};
use inspect::memory::ScanLimits;

const STUCK: u8 = 3;
const UNKNOWN: u8 = 4;
const WAITING: u8 = 5;

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
            debug_files: args.debug.files(),
            stacks: args.stacks,
        };
        let mut bar = ProgressLine::new();
        let report = dump::dump(&choice, &options, &mut |progress| bar.show(progress));
        bar.clear();
        reports.push(report?);
    }
    reports.extend(merge::reports(&args.merge)?);
    let report = if args.merge.is_empty() { reports.pop().unwrap_or_default() } else { dump::merge(reports) };
    let mut out = terminal::out();
    if args.json {
        write_json(&mut out, &report)?;
    } else {
        // The first paragraph is the verdict.
        let text = dump::render(&report, args.verbose || args.stacks);
        let (verdict, rest) = match (&report.job, text.split_once("\n\n")) {
            (Some(_), Some(parts)) if terminal::has_color() => parts,
            _ => ("", &*text),
        };
        if !verdict.is_empty() {
            terminal::verdict(mood(report.state()), verdict)?;
            writeln!(out)?;
        }
        write!(out, "{rest}")?;
    }
    out.flush()?;
    if let Some(prefix) = &args.flight_recorder {
        write_flight_recorder(&report, prefix)?;
    }
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
        State::Waiting => ExitCode::from(WAITING),
    })
}

/// Notes about the files go to standard error: standard output has the report.
fn write_flight_recorder(report: &DumpReport, prefix: &Path) -> Result<()> {
    let RecorderDumps { ranks, notes } = dump::recorder_dumps(report);
    for note in notes {
        terminal::tell(format_args!("{note}"));
    }
    if ranks.is_empty() {
        bail!("no flight recorder's file can be made: no communicator of several ranks was found");
    }
    let files = RankFiles::at(prefix)?;
    let mut entries = 0;
    for (rank, dump) in &ranks {
        files.write((*rank).into(), &dump.entries, &dump.groups, dump.comm_lib_version.as_deref())?;
        entries += dump.entries.len();
    }
    terminal::tell(format_args!(
        "{entries} entries of {} ranks written to {}",
        ranks.len(),
        prefix.display()
    ));
    Ok(())
}

fn mood(state: State) -> Mood {
    match state {
        State::Healthy => Mood::Good,
        State::Stuck => Mood::Bad,
        State::Unknown | State::Waiting => Mood::Doubtful,
    }
}
