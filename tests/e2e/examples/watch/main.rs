//! `watch [--times N] [--kinds NAME,…] [--minutes N] [--at-once N] --out FOLDER`: `ncclflow watch` beside every kind of
//! hang and of wait that is none, counted; or beside jobs of which none hangs.
//!
//! `cargo xtask verify watch` builds and runs this. It is an example of `ncclflow-e2e` for the reason that `conformance`
//! is one.

mod quiet;
mod suite;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use ncclflow_e2e::harness::hangs::Arguments;

fn main() -> Result<ExitCode> {
    let arguments = Arguments::of_program()?;
    let out = PathBuf::from(arguments.value("--out").context("--out FOLDER")?);
    fs::create_dir_all(&out).with_context(|| format!("making `{}`", out.display()))?;
    let passed = if arguments.value("--minutes").is_some() {
        quiet::run(arguments.number("--minutes", 0)?, &out)?
    } else {
        let at_once = arguments.number("--at-once", 2)?.max(1);
        suite::run(&arguments.kinds()?, arguments.number("--times", 1)?, at_once, &out)
    };
    println!("{}", if passed { "PASSED" } else { "FAILED" });
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
