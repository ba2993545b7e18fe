//! `watch [--times N] [--kinds NAME,…] [--minutes N] [--at-once N] --out FOLDER`: `ncclflow watch` beside every kind of
//! hang and of wait that is none, counted; or beside jobs of which none hangs.
//!
//! `cargo xtask verify watch` builds and runs this. It is an example of `ncclflow-e2e` for the reason that `conformance`
//! is one.

mod quiet;
mod suite;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};
use ncclflow_e2e::harness::{
    hangs::{KINDS, kind},
    programs,
};
use test_support::root;

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let number = |name: &str, default: usize| match value(name) {
        Some(value) => value.parse().with_context(|| format!("{name} {value}")),
        None => Ok(default),
    };
    let has_all =
        programs::ncclflow().is_some() && programs::bed().is_some() && programs::nvml_double().is_some();
    if !root() || !has_all {
        bail!("something is missing that this needs; see above");
    }
    let out = PathBuf::from(value("--out").context("--out FOLDER")?);
    fs::create_dir_all(&out).with_context(|| format!("making `{}`", out.display()))?;
    let passed = if value("--minutes").is_some() {
        quiet::run(number("--minutes", 0)?, &out)?
    } else {
        let kinds = match value("--kinds") {
            Some(names) => names
                .split(',')
                .map(|name| kind(name).with_context(|| format!("there is no kind `{name}`")))
                .collect::<Result<Vec<_>>>()?,
            None => KINDS.iter().collect(),
        };
        suite::run(&kinds, number("--times", 1)?, number("--at-once", 2)?.max(1), &out)
    };
    println!("{}", if passed { "PASSED" } else { "FAILED" });
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
