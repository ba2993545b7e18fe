//! `ncclflow replay`

use std::{
    io::{Write as _, stdout},
    process::ExitCode,
};

use anyhow::Result;

use super::args::ReplayArgs;
use crate::record::replay;

pub(super) fn run(args: &ReplayArgs) -> Result<ExitCode> {
    let done = replay(&args.capture, &args.output)?;
    let mut out = stdout().lock();
    writeln!(out, "{} records replayed into {}", done.records, args.output.display())?;
    if done.is_cut {
        writeln!(out, "the capture has no end: its recording was killed, or its disk was full")?;
    }
    if done.undecodable > 0 {
        writeln!(out, "{} records could not be understood", done.undecodable)?;
    }
    Ok(ExitCode::SUCCESS)
}
