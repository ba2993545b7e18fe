//! `ncclflow check`: are the ranks consistent? Without root.

use std::process::ExitCode;

use anyhow::Result;

use super::{
    args::CheckArgs,
    exit,
    progress::reading,
    terminal::{self, Mood},
    write_json,
};
use analysis::check::{check, headline, write_check};

pub(super) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let report = reading("", |line| check(&args.dirs, &mut |bytes, of_bytes| line.show(bytes, of_bytes)))?;
    if args.json {
        write_json(&mut terminal::out(), &report)?;
    } else {
        let mood = if report.consistent { Mood::Good } else { Mood::Bad };
        terminal::verdict(mood, &headline(&report))?;
        write_check(&report, args.verbose, &mut terminal::out())?;
    }
    Ok(if report.consistent { ExitCode::SUCCESS } else { ExitCode::from(exit::FINDINGS) })
}
