//! `ncclflow aggregate` and `check`: what is made of recordings, without root.

use std::{io::Write, process::ExitCode};

use anyhow::Result;

use super::{
    args::{AggregateArgs, CheckArgs},
    exit,
    progress::BytesLine,
    terminal::{self, Mood},
    write_json,
};
use crate::{
    check::{check, headline, write_check},
    sinks::{OutputDir, aggregate_directory, has_ranks, window_folders},
};

pub(super) fn run_aggregate(args: &AggregateArgs) -> Result<ExitCode> {
    let dir = OutputDir::open(&args.dir)?;
    let mut out = terminal::out();
    let windows = window_folders(&dir)?;
    if windows.is_empty() {
        return aggregate(&dir, &mut out);
    }
    for window in windows {
        write!(out, "{window}: ")?;
        let folder = dir.open_subfolder(&window)?;
        if has_ranks(&folder)? {
            aggregate(&folder, &mut out)?;
        } else {
            writeln!(out, "it has no files of operations")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn aggregate(dir: &OutputDir, out: &mut dyn Write) -> Result<ExitCode> {
    let done = aggregate_directory(dir, u64::MAX)?;
    writeln!(
        out,
        "{} flow_rank files written, with {} operations and {} messages",
        done.ranks, done.ops, done.steps
    )?;
    if done.cut_lines > 0 {
        writeln!(
            out,
            "{} lines at the ends of files are incomplete and were left out: the recording was killed, or \
             has not ended",
            done.cut_lines
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn run_check(args: &CheckArgs) -> Result<ExitCode> {
    let mut line = BytesLine::new("");
    let report = check(&args.dirs, &mut |bytes, of_bytes| line.show(bytes, of_bytes));
    line.clear();
    let report = report?;
    if args.json {
        write_json(&mut terminal::out(), &report)?;
    } else {
        let mood = if report.consistent { Mood::Good } else { Mood::Bad };
        terminal::verdict(mood, &headline(&report))?;
        write_check(&report, args.verbose, &mut terminal::out())?;
    }
    Ok(if report.consistent { ExitCode::SUCCESS } else { ExitCode::from(exit::FINDINGS) })
}
