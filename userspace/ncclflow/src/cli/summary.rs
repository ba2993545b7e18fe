//! `ncclflow summary`

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::{exit::Exit, progress::reading, terminal, write_report};
use analysis::check::{summarize, summary_headline, write_summary};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow summary /var/tmp/flows
  ncclflow summary host1/flows host2/flows --json | jq '.ranks[].links[] | {peer, bandwidth}'
  ncclflow summary flows -v                    every link

Waits and bandwidth are there for recordings of --level steps; messages and bytes for all.")]
pub struct SummaryArgs {
    /// Folders of recordings or windows; of a folder with windows, each window by itself
    #[arg(value_name = "DIR", required = true, num_args = 1..)]
    pub dirs: Vec<PathBuf>,

    /// All links and all waits; without it, only those that matter most
    #[arg(short, long)]
    pub verbose: bool,

    /// All of it as JSON, with the times of each op
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &SummaryArgs) -> Result<Exit> {
    let report =
        reading("", |line| summarize(&args.dirs, &mut |bytes, of_bytes| line.bytes(bytes, of_bytes)))?;
    write_report(args.json, &report, |out| {
        terminal::verdict(None, &summary_headline(&report))?;
        Ok(write_summary(&report, args.verbose, out)?)
    })?;
    Ok(Exit::Done)
}
