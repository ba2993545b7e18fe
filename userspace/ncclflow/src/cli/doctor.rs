//! `ncclflow doctor`

use std::{
    io::{Write as _, stdout},
    process::ExitCode,
};

use anyhow::Result;

use super::args::DoctorArgs;
use crate::doctor::{Verdict, examine};

pub(super) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let report = examine();
    let mut out = stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        report.print(&mut out)?;
    }
    out.flush()?;
    Ok(if report.verdict == Verdict::No { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
