//! `cargo xtask bench`: costs and speed of ncclflow, as ratios with their spread.

mod attach;
mod detach;
mod drain;
mod dump;
mod fleet;
mod memory;
mod merge;
mod overhead;
mod program_runs;
mod report;
mod resolve;
mod saturate;
mod scale;
mod spread;
mod stacks;
mod traced_job;
mod tracefs;
mod volume;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Subcommand;

use crate::root;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,

    /// Write the result to this file too
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
}

// Arguments of benches that repeat each measurement. (A doc comment would become the help text of those
// benches.)
#[derive(Debug, clap::Args)]
struct Repeated {
    /// NCCL version to run, like 2.27.5 or 2.28.9-cu13
    #[arg(long, value_name = "VERSION", default_value = "2.27.5")]
    nccl: String,

    /// How often each measurement is made
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Many small collectives on the bed, untraced and traced at each level in turn (root)
    Overhead(overhead::Args),
    /// From the start of the program to the first probe armed: cold, warm, with cached layouts (root)
    Attach(attach::Args),
    /// How long it takes to resolve a library: by its debugging information, by its symbols, stripped
    Resolve(resolve::Args),
    /// Records per second and core: the drain by itself, and each stage after it (root)
    Drain(Repeated),
    /// How long the probes take to go, by their number (root)
    Detach(Repeated),
    /// How long `dump` looks through a process, by the memory that it has filled (root)
    Dump(dump::Args),
    /// How long `dump --merge` takes over many hosts (root)
    Merge(merge::Args),
    /// Memory of `record` with 8 processes and 4 communicators (root)
    Memory(Repeated),
    /// Time of a job under the tracer, against ranks, channels and operations per group (root)
    Scale(scale::Args),
    /// Bytes on disk of a recording, and the CPU time to write and to read it
    Volume(volume::Args),
    /// Parquet tables of a job of many ranks, made of a recording of few: time, memory, and the shipped queries
    Fleet(fleet::Args),
    /// The page of `ncclflow report` of a job of 64 ranks, made of a recording of few: its size, and when a
    /// browser shows its first picture (chromium)
    Report(report::Args),
    /// What call stacks cost a call, by their frames, seen before and new (root, python3)
    Stacks(stacks::Args),
    /// A job that never pauses, for a long time: delivered + lost = hits, to the record (root)
    Saturate(saturate::Args),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if !matches!(args.bench, Bench::Resolve(_) | Bench::Volume(_) | Bench::Fleet(_) | Bench::Report(_)) {
        root::become_root("this benchmark")?;
    }
    let result = match &args.bench {
        Bench::Overhead(args) => overhead::run(args),
        Bench::Attach(args) => attach::run(args),
        Bench::Resolve(args) => resolve::run(args),
        Bench::Drain(args) => drain::run(args),
        Bench::Detach(args) => detach::run(args),
        Bench::Dump(args) => dump::run(args),
        Bench::Merge(args) => merge::run(args),
        Bench::Memory(args) => memory::run(args),
        Bench::Scale(args) => scale::run(args),
        Bench::Volume(args) => volume::run(args),
        Bench::Fleet(args) => fleet::run(args),
        Bench::Report(args) => report::run(args),
        Bench::Stacks(args) => stacks::run(args),
        Bench::Saturate(args) => saturate::run(args),
    }?;
    let text = serde_json::to_string_pretty(&result)? + "\n";
    print!("{text}");
    args.json.as_deref().map_or(Ok(()), |path| write(path, &text))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing `{}`", path.display()))
}
