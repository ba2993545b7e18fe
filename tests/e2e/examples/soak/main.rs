//! `soak [--minutes N] [--seed S] [--kills N]`: a node that is recorded while its tenants do all that tenants do.
//!
//! `cargo xtask verify soak` builds and runs this. It is an example of `ncclflow-e2e` for the reason that `conformance` is one.

mod check;
mod clients;
mod files;
mod idle;
mod jobs;
mod kills;
mod ledger;
mod recording;
mod run;
mod tenant;
mod tenants;
mod tracer;
mod watcher;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail};
use ncclflow_e2e::harness::programs;
use test_support::root;

/// What a run needs.
#[derive(Debug)]
struct World {
    ncclflow: PathBuf,
    bed: PathBuf,
    /// NCCL libraries: one that stays as it is, and two that files are made of which do not.
    steady: PathBuf,
    restless: [PathBuf; 2],
    seed: u64,
}

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == tenant::ROLE) {
        return tenant::run(arguments.get(1..).unwrap_or_default());
    }
    let value = |name: &str| -> Result<Option<u64>> {
        let Some(at) = arguments.iter().position(|argument| argument == name) else { return Ok(None) };
        let value = arguments.get(at + 1).with_context(|| format!("{name} needs a number"))?;
        Ok(Some(value.parse().with_context(|| format!("{name} {value}"))?))
    };
    let seed = value("--seed")?.unwrap_or_else(|| u64::from(std::process::id())).max(1);
    let Some(world) = world(seed) else { bail!("something is missing that the soak needs; see above") };
    println!("seed {seed}");
    let checks = match value("--kills")? {
        Some(kills) => kills::run(&world, kills)?,
        None => run::run(&world, Duration::from_mins(value("--minutes")?.unwrap_or(60)))?,
    };
    Ok(if checks.print() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn world(seed: u64) -> Option<World> {
    if !root() {
        return None;
    }
    Some(World {
        ncclflow: programs::ncclflow()?,
        bed: programs::bed()?,
        steady: programs::nccl("2.24.3-cu12")?,
        restless: [programs::nccl("2.19.3-cu12")?, programs::nccl("2.17.1-cu12")?],
        seed,
    })
}
