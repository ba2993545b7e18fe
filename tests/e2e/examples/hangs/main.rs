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

use anyhow::{Context as _, Result, bail};
use ncclflow_e2e::harness::{
    dumper::Dump,
    hangs::{KINDS, kind},
    programs,
};
use test_support::root;

use self::busy::Jobs;

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
    let kept = Kept::new(value("--out").context("--out FOLDER")?.into())?;
    let at_once = number("--at-once", 2)?.max(1);
    let passed = if value("--busy").is_some() {
        busy::run(Jobs::Phases, number("--busy", 0)?, at_once, &kept)?
    } else if value("--pipelines").is_some() {
        busy::run(Jobs::Pipelines, number("--pipelines", 0)?, at_once, &kept)?
    } else {
        let kinds = match value("--kinds") {
            Some(names) => names
                .split(',')
                .map(|name| kind(name).with_context(|| format!("there is no kind `{name}`")))
                .collect::<Result<Vec<_>>>()?,
            None => KINDS.iter().collect(),
        };
        suite::run(&kinds, number("--times", 5)?, at_once, &kept)
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
