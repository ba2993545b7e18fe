//! `ncclflow check` and `ncclflow summary`: are the ranks consistent, and how do their links do? Without
//! root.

use std::{io::Write as _, path::PathBuf};

use anyhow::Result;
use clap::{Args, builder::styling::AnsiColor};

use super::{Versioned, exit::Exit, progress::reading, terminal, write_report};
use analysis::check::{check_jobs, headline, summarize, summary_headline, write_check, write_summary};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow check /var/tmp/flows           one host
  ncclflow check host1/flows host2/flows  all ranks of a job
  ncclflow check flows --job 4711         one of several jobs
  ncclflow check flows -v                 with the waits of every rank
  ncclflow check flows --json | jq '.slow | {kind, ranks, percent}'
  ncclflow check host*/calls              of record --level api --stacks: with
                                          the line of each rank
  ncclflow check flows --json | jq -r '.communicators[].firstDifference.text'

Says who holds the job back: a GPU that computes longer, a host that launches late, a stage, a link, or \
nobody, and what shows it. Finds collectives that are not the same on all ranks, or in another order; \
ranks that have not joined; sends without receives.
Exit codes: 0 consistent; 3 findings; 1 error, or nothing was recorded; 2 wrong usage.")]
pub struct CheckArgs {
    /// Folders of recordings or windows
    ///
    /// Those of one communicator's ranks are put together; of folders with windows, those that were open at
    /// the same time.
    #[arg(value_name = "DIR", required = true, num_args = 1..)]
    pub dirs: Vec<PathBuf>,

    /// Only these jobs, by name; without it each job has a verdict
    #[arg(long, value_name = "JOB", value_delimiter = ',')]
    pub job: Vec<String>,

    /// The waits of every rank
    #[arg(short, long)]
    pub verbose: bool,

    /// All that was found, as JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &CheckArgs) -> Result<Exit> {
    let report = reading("", |line| {
        check_jobs(&args.dirs, &args.job, &mut |bytes, of_bytes| line.bytes(bytes, of_bytes))
    })?;
    let (color, exit) =
        if report.consistent { (AnsiColor::Green, Exit::Done) } else { (AnsiColor::Red, Exit::Findings) };
    write_report(args.json, &Versioned::first(&report), |out| {
        terminal::verdict(Some(color), &headline(&report))?;
        let mut text = Vec::new();
        write_check(&report, args.verbose, &mut text)?;
        Ok(write!(out, "{}", terminal::fitted(&String::from_utf8_lossy(&text), terminal::width()))?)
    })?;
    Ok(exit)
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow summary /var/tmp/flows
  ncclflow summary host1/flows host2/flows --json | jq '.ranks[].links'
  ncclflow summary flows -v               every link

Waits and bandwidth are there for recordings of --level steps; messages and bytes for all.")]
pub struct SummaryArgs {
    /// Folders of recordings or windows
    ///
    /// Of a folder with windows, each window by itself.
    #[arg(value_name = "DIR", required = true, num_args = 1..)]
    pub dirs: Vec<PathBuf>,

    /// All links and all waits; without it, only those that matter most
    #[arg(short, long)]
    pub verbose: bool,

    /// All of it as JSON, with the times of each op
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run_summary(args: &SummaryArgs) -> Result<Exit> {
    let report =
        reading("", |line| summarize(&args.dirs, &mut |bytes, of_bytes| line.bytes(bytes, of_bytes)))?;
    write_report(args.json, &Versioned::first(&report), |out| {
        terminal::verdict(None, &summary_headline(&report))?;
        Ok(write_summary(&report, args.verbose, terminal::width(), out)?)
    })?;
    Ok(Exit::Done)
}
