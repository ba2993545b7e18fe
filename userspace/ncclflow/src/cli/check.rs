//! `ncclflow check`

use std::{
    io::{Write as _, stdout},
    process::ExitCode,
};

use anyhow::Result;

use super::{args::CheckArgs, exit};
use crate::check::{check, write_check};

pub(super) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let report = check(&args.dirs)?;
    let mut out = stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        write_check(&report, &mut out)?;
    }
    Ok(if report.consistent { ExitCode::SUCCESS } else { ExitCode::from(exit::FINDINGS) })
}
