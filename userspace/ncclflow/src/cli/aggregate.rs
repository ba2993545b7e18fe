//! `ncclflow aggregate`

use std::{
    io::{Write as _, stdout},
    process::ExitCode,
};

use anyhow::Result;

use super::args::AggregateArgs;
use crate::sinks::{OutputDir, aggregate_directory};

pub(super) fn run(args: &AggregateArgs) -> Result<ExitCode> {
    let done = aggregate_directory(&OutputDir::open(&args.dir)?, u64::MAX)?;
    let mut out = stdout().lock();
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
