//! `ncclflow doctor`

use std::{io::Write as _, process::ExitCode};

use anyhow::Result;

use super::{args::DoctorArgs, terminal, write_json};
use crate::doctor::{Verdict, examine};

pub(super) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let report = examine(args.pid);
    let mut out = terminal::out();
    if args.json {
        write_json(&mut out, &report)?;
    } else {
        report.print(&mut out)?;
    }
    out.flush()?;
    Ok(if report.verdict == Verdict::No { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
