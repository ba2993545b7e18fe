//! `ncclflow summary`

use std::{io::Write as _, process::ExitCode};

use anyhow::Result;

use super::{
    args::SummaryArgs,
    progress::reading,
    terminal::{self, Mood},
    write_json,
};
use analysis::check::{summarize, summary_headline, write_summary};

pub(super) fn run(args: &SummaryArgs) -> Result<ExitCode> {
    let report =
        reading("", |line| summarize(&args.dirs, &mut |bytes, of_bytes| line.show(bytes, of_bytes)))?;
    if args.json {
        write_json(&mut terminal::out(), &report)?;
    } else {
        terminal::verdict(Mood::Neutral, &summary_headline(&report))?;
        let mut out = terminal::out();
        write_summary(&report, args.verbose, &mut out)?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}
