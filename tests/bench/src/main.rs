//! Costs and speed of ncclflow, as ratios with their spread. `cargo xtask bench` builds this, and starts it
//! as root where that is needed.

mod attach;
mod bench;
mod detach;
mod drain;
mod dump;
mod fleet;
#[path = "../../../xtask/src/job.rs"]
mod job;
mod memory;
mod merge;
mod overhead;
mod peers;
mod process;
mod recorded;
mod report;
mod resolve;
mod saturate;
mod scale;
mod stacks;
mod table;
mod verdicts;
mod volume;
mod watch;

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use serde_json::{Value, json};

use self::bench::Bench;

#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask bench", about = "Measure what tracing costs: ratios with their spread")]
struct Cli {
    #[command(subcommand)]
    measurement: Measurement,

    /// NCCL version to run, like 2.27.5 or 2.28.9-cu13, where one runs
    #[arg(long, value_name = "VERSION", global = true)]
    nccl: Option<String>,

    /// How often each measurement is made, where one is made several times
    #[arg(long, value_name = "N", global = true, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,

    /// Write the result to this file too
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Measurement {
    /// Many small collectives on the bed, untraced and traced at each level in turn (root)
    Overhead(overhead::Args),
    /// From the start of the program to the first probe armed: cold, warm, with cached layouts (root)
    Attach(attach::Args),
    /// How long it takes to resolve a library: by its debugging information, by its symbols, stripped
    Resolve,
    /// Records per second and core: the drain by itself, and each stage after it (root)
    Drain,
    /// How long the probes take to go, by their number (root)
    Detach,
    /// How long `dump` looks through a process, by the memory that it has filled (root)
    Dump(dump::Args),
    /// How long `dump --merge` takes over many hosts (root)
    Merge(merge::Args),
    /// Memory of `record` with 8 processes and 4 communicators (root)
    Memory,
    /// Time of a job under the tracer, against ranks, channels and operations per group (root)
    Scale,
    /// Bytes on disk of a recording, and the CPU time to write and to read it
    Volume(volume::Args),
    /// Parquet tables of a job of many ranks, made of a recording of few: time, memory, and the shipped
    /// queries
    Fleet(fleet::Args),
    /// The page of `ncclflow report` of a job of 64 ranks, made of a recording of few: its size, and when a
    /// browser shows its first picture (chromium)
    Report(report::Args),
    /// What call stacks cost a call, by their frames, seen before and new (root, python3)
    Stacks(stacks::Args),
    /// Who makes a job slow: jobs on the bed with faults out of a seed, and how often `check` is right (root)
    Verdicts(verdicts::Args),
    /// What `dump`, NCCL's RAS and py-spy say of the same hangs: whether each names the rank (root, python3)
    Peers(peers::Args),
    /// What `watch` costs: processor, memory, and the time of jobs with and without it (root)
    Watch(watch::Args),
    /// A job that never pauses, for a long time: delivered + lost = hits, to the record (root)
    Saturate(saturate::Args),
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let rounds = |usual: u16| usize::from(cli.rounds.unwrap_or(usual));
    // Runs one of those that need NCCL: what is usual, unless told otherwise.
    let with_nccl = |version: &str, usual: u16, measure: &dyn Fn(&mut Bench) -> Result<Value>| {
        let nccl = cli.nccl.as_deref().unwrap_or(version);
        let result = measure(&mut Bench::new(nccl, rounds(usual))?)?;
        Ok(json!({ "nccl": nccl, "rounds": rounds(usual), "result": result }))
    };
    let result: Result<Value> = match &cli.measurement {
        Measurement::Overhead(args) => with_nccl("2.28.9-cu13", 5, &|bench| overhead::run(bench, args)),
        Measurement::Attach(args) => with_nccl("2.32.3", 7, &|bench| attach::run(bench, args)),
        Measurement::Resolve => with_nccl("2.32.3", 15, &resolve::run),
        Measurement::Drain => with_nccl("2.27.5", 5, &drain::run),
        Measurement::Detach => with_nccl("2.27.5", 5, &detach::run),
        Measurement::Dump(args) => with_nccl("2.27.5", 10, &|bench| dump::run(bench, args)),
        Measurement::Merge(args) => with_nccl("2.27.5", 5, &|bench| merge::run(bench, args)),
        Measurement::Memory => with_nccl("2.27.5", 5, &memory::run),
        Measurement::Scale => with_nccl("2.27.5", 5, &scale::run),
        Measurement::Volume(args) => volume::run(args, rounds(5)),
        Measurement::Fleet(args) => fleet::run(args),
        Measurement::Report(args) => report::run(args, rounds(5)),
        Measurement::Stacks(args) => with_nccl("2.27.5", 5, &|bench| stacks::run(bench, args)),
        Measurement::Verdicts(args) => with_nccl("2.27.5", 1, &|bench| verdicts::run(bench, args)),
        Measurement::Peers(args) => with_nccl("2.28.9-cu13", 1, &|bench| peers::run(bench, args)),
        Measurement::Watch(args) => with_nccl("2.27.5", 20, &|bench| watch::run(bench, args)),
        Measurement::Saturate(args) => with_nccl("2.27.5", 1, &|bench| saturate::run(bench, args)),
    };
    let text = serde_json::to_string_pretty(&result?)? + "\n";
    print!("{text}");
    let Some(path) = &cli.json else { return Ok(()) };
    fs::write(path, &text).with_context(|| format!("writing `{}`", path.display()))
}
