//! What a call stack costs the call: a Python program calls NCCL in a tight loop, untraced, traced, and traced with
//! stacks, in turn.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{spread::Spread, traced_job::Bench};
use crate::repository;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// NCCL version to run, like 2.27.5 or 2.28.9-cu13
    #[arg(long, value_name = "VERSION", default_value = "2.27.5")]
    nccl: String,

    /// The CPython that calls it
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,

    /// How often each way has its turn
    #[arg(long, default_value_t = 5)]
    rounds: u32,

    /// Batches of 2,000 calls in a turn
    #[arg(long, default_value_t = 10)]
    batches: u32,
}

/// Frames of the stack, and whether the stack was sent before.
const SHAPES: [(u32, &str); 6] =
    [(3, "known"), (12, "known"), (24, "known"), (4, "new"), (12, "new"), (24, "new")];
const WAYS: [(&str, &[&str]); 3] = [
    ("untraced", &[]),
    ("api", &["--level", "api"]),
    ("api with stacks", &["--level", "api", "--stacks", "--stack-depth", "48"]),
];

pub(crate) fn run(args: &Args) -> Result<Value> {
    let mut bench = Bench::prepare(&args.nccl, "stacks")?;
    let mut rows = Vec::new();
    println!("\n{:<20} {:>18} {:>24} {:>24}", "frames", "way", "ns a call", "µs more than without");
    for (frames, kind) in SHAPES {
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); WAYS.len()];
        for round in 0..args.rounds as usize {
            // Each round begins with another way.
            for step in 0..WAYS.len() {
                let at = (round + step) % WAYS.len();
                let Some((name, options)) = WAYS.get(at) else { continue };
                let time = turn(&mut bench, args, frames, kind, options)
                    .with_context(|| format!("the turn of {name} with {frames} frames"))?;
                times.get_mut(at).context("a way")?.push(time);
            }
        }
        let spreads: Vec<Spread> = times.into_iter().map(Spread::of).collect();
        let [untraced, api, stacks] = spreads.as_slice() else { bail!("three ways") };
        let more_us = (stacks.median - api.median) / 1e3;
        for ((name, _), spread) in WAYS.iter().zip(&spreads) {
            let more = if *name == "api with stacks" { format!("{more_us:.2}") } else { String::new() };
            println!("{:<20} {name:>18} {:>24} {more:>24}", format!("{frames} {kind}"), spread.to_string());
        }
        rows.push(json!({
            "frames": frames,
            "stacks": kind,
            "untraced_ns": untraced,
            "api_ns": api,
            "api_with_stacks_ns": stacks,
            "more_us": more_us,
            "ratio": stacks.median / api.median,
        }));
    }
    Ok(
        json!({ "bench": "stacks", "nccl": args.nccl, "python": args.python, "rounds": args.rounds, "rows": rows }),
    )
}

/// A program that is ended with its turn.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The median of the batches of one turn: nanoseconds of a call.
fn turn(bench: &mut Bench, args: &Args, frames: u32, kind: &str, options: &[&str]) -> Result<f64> {
    let go = bench.fresh("go");
    let mut program = Command::new(&args.python)
        .arg(repository::root().join("tests/e2e/tests/python/stacks_bench.py"))
        .arg(&bench.library)
        .arg(&go)
        .args([&frames.to_string(), kind, &args.batches.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map(Ended)
        .with_context(|| format!("starting `{}`", args.python.display()))?;
    let mut lines = BufReader::new(program.0.stdout.take().context("it has no output")?).lines();
    let ready = lines.next().context("it ended")??;
    let pid = ready.split_once(' ').map(|(_, pid)| pid.to_owned()).context("it is not ready")?;
    let recording = match options {
        [] => None,
        options => Some(bench.record_pids(&pid, &[options, &["--files", "none"]].concat())?),
    };
    fs::File::create(&go)?;
    let times: Vec<f64> = lines.map(|line| Ok(line?.parse()?)).collect::<Result<_>>()?;
    if let Some(recording) = recording {
        let recorded = recording.finish()?;
        if recorded.session["loss"]["records_lost"] != 0 {
            bail!("records were lost: {}", recorded.session["loss"]);
        }
    }
    if times.len() != args.batches as usize {
        bail!("{} batches instead of {}", times.len(), args.batches);
    }
    Ok(Spread::of(times).median)
}
