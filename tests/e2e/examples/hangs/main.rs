//! `hangs [--times N] [--kinds NAME,…] [--busy N] [--pipelines N] [--at-once N] --out FOLDER`: `ncclflow dump` on every kind of hang and
//! of wait that is none, counted; or on jobs that are busy.
//!
//! `cargo xtask verify hangs` builds and runs this. It is an example of `ncclflow-e2e` for the reason that `conformance` is one.

mod busy;
mod suite;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context as _, Result};
use ncclflow_e2e::harness::{dumper::Dump, hangs::Arguments};

use self::busy::Jobs;

fn main() -> Result<ExitCode> {
    let arguments = Arguments::of_program()?;
    let kept = Kept::new(arguments.value("--out").context("--out FOLDER")?.into())?;
    let at_once = arguments.number("--at-once", 2)?.max(1);
    let passed = if arguments.value("--busy").is_some() {
        busy::run(Jobs::Phases, arguments.number("--busy", 0)?, at_once, &kept)?
    } else if arguments.value("--pipelines").is_some() {
        busy::run(Jobs::Pipelines, arguments.number("--pipelines", 0)?, at_once, &kept)?
    } else {
        suite::run(&arguments.kinds()?, arguments.number("--times", 5)?, at_once, &kept)
    };
    println!("{}", if passed { "PASSED" } else { "FAILED" });
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where dumps are kept that were not right.
#[derive(Debug)]
struct Kept {
    folder: PathBuf,
    number: AtomicU64,
}

impl Kept {
    fn new(folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(&folder).with_context(|| format!("making `{}`", folder.display()))?;
        Ok(Self { folder, number: AtomicU64::new(0) })
    }

    fn keep(&self, name: &str, dump: &Dump) -> Result<PathBuf> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let path: &Path = &self.folder.join(format!("{name}.{}.{number}.json", std::process::id()));
        fs::write(path, &dump.text).with_context(|| format!("writing `{}`", path.display()))?;
        Ok(path.to_path_buf())
    }
}
