//! `ncclflow aggregate`

use std::process::ExitCode;

use anyhow::Result;

use super::args::AggregateArgs;
use crate::sink::{OutputDir, aggregate_directory};

pub(super) fn run(args: &AggregateArgs) -> Result<ExitCode> {
    let done = aggregate_directory(&OutputDir::open(&args.dir)?, u64::MAX)?;
    println!("{} flow_rank files: {} ops, {} messages", done.ranks, done.ops, done.steps);
    if done.cut_lines > 0 {
        println!(
            "{} last lines have no end and were left out: the recording was killed, or still goes on",
            done.cut_lines
        );
    }
    Ok(ExitCode::SUCCESS)
}
