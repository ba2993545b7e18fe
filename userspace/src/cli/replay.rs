//! `ncclflow replay`

use std::process::ExitCode;

use anyhow::Result;

use super::args::ReplayArgs;
use crate::record::replay;

pub(super) fn run(args: &ReplayArgs) -> Result<ExitCode> {
    let done = replay(&args.capture, &args.output)?;
    println!("{} records replayed into {}", done.records, args.output.display());
    if done.is_cut {
        println!("the capture has no end: its recording was killed, or its disk was full");
    }
    if done.undecodable > 0 {
        println!("{} records could not be understood", done.undecodable);
    }
    Ok(ExitCode::SUCCESS)
}
