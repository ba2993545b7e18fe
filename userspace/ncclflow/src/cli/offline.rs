//! `ncclflow aggregate` and `check`: what is made of recordings, without root.

use std::{io::Write, process::ExitCode};

use anyhow::Result;

use super::{
    args::{AggregateArgs, CheckArgs},
    exit,
    progress::BytesLine,
    terminal, write_json,
};
use crate::{
    check::{check, write_check},
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
            writeln!(out, "no files of ops")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn aggregate(dir: &OutputDir, out: &mut dyn Write) -> Result<ExitCode> {
    let done = aggregate_directory(dir, u64::MAX)?;
    writeln!(out, "{} flow_rank files: {} ops, {} messages", done.ranks, done.ops, done.steps)?;
    if done.cut_lines > 0 {
        writeln!(
            out,
            "{} last lines have no end and were left out: the recording was killed, or still goes on",
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
    let mut out = terminal::out();
    if args.json {
        write_json(&mut out, &report)?;
    } else {
        write_check(&report, &mut out)?;
    }
    Ok(if report.consistent { ExitCode::SUCCESS } else { ExitCode::from(exit::FINDINGS) })
}
