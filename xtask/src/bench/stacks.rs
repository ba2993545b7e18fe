//! `cargo xtask bench stacks`: cost of a call stack for the call. A Python program calls NCCL in a tight
//! loop, untraced, traced, and traced with stacks, in turn.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{
    program_runs::{ProgramRuns, Statistics},
    spread::Spread,
    traced_job::Bench,
};
use crate::{repository, tool};

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

/// Shapes: frames of the stack, and whether the stack was sent before. Each frame is of another function,
/// except in recursive ones.
const SHAPES: [(u32, &str); 7] =
    [(3, "known"), (12, "known"), (24, "known"), (12, "recursive"), (4, "new"), (12, "new"), (24, "new")];
const WAYS: [(&str, &[&str]); 3] = [
    ("untraced", &[]),
    ("api", &["--level", "api"]),
    ("api with stacks", &["--level", "api", "--stacks", "--stack-depth", "48"]),
];

/// Times of a turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Nanoseconds of a call: the median of the batches.
    call: f64,
    /// Nanoseconds of the kernel side's program for a hit, by the kernel's own count. This is steady beside
    /// what else the machine does, but has neither the trap nor the reader's work.
    program: f64,
}

pub(crate) fn run(args: &Args) -> Result<Value> {
    let mut bench = Bench::prepare(&args.nccl, "stacks")?;
    let _statistics = Statistics::on()?;
    let version = version_of(&args.python)?;
    let mut rows = Vec::new();
    println!("\nCPython {version}");
    println!(
        "{:<14} {:>16} {:>24} {:>26} {:>14}",
        "frames", "way", "ns a call", "ns of the program a hit", "µs more"
    );
    for (frames, kind) in SHAPES {
        let mut turns: Vec<Vec<Turn>> = vec![Vec::new(); WAYS.len()];
        for round in 0..args.rounds as usize {
            // Each round begins with another way.
            for step in 0..WAYS.len() {
                let at = (round + step) % WAYS.len();
                let Some((name, options)) = WAYS.get(at) else { continue };
                let turn = turn(&mut bench, args, frames, kind, options)
                    .with_context(|| format!("the turn of {name} with {frames} frames"))?;
                turns.get_mut(at).context("a way")?.push(turn);
            }
        }
        let calls: Vec<Spread> =
            turns.iter().map(|turns| Spread::of(turns.iter().map(|turn| turn.call))).collect();
        let programs: Vec<Spread> =
            turns.iter().map(|turns| Spread::of(turns.iter().map(|turn| turn.program))).collect();
        let ([untraced, api, stacks], [_, api_program, stacks_program]) = (&*calls, &*programs) else {
            bail!("three ways")
        };
        let more_us = (stacks.median - api.median) / 1e3;
        let program_more_us = (stacks_program.median - api_program.median) / 1e3;
        for (((name, _), call), program) in WAYS.iter().zip(&calls).zip(&programs) {
            let is_last = *name == "api with stacks";
            let more = if is_last { format!("{more_us:.2} ({program_more_us:.2})") } else { String::new() };
            let program = if program.median.is_nan() { String::new() } else { program.to_string() };
            let shape = format!("{frames} {kind}");
            println!("{shape:<14} {name:>16} {:>24} {program:>26} {more:>14}", call.to_string());
        }
        rows.push(json!({
            "frames": frames,
            "stacks": kind,
            "untraced_ns": untraced,
            "api_ns": api,
            "api_with_stacks_ns": stacks,
            "more_us": more_us,
            "ratio": stacks.median / api.median,
            "api_program_ns": api_program,
            "api_with_stacks_program_ns": stacks_program,
            "program_more_us": program_more_us,
        }));
    }
    Ok(json!({
        "bench": "stacks",
        "nccl": args.nccl,
        "python": version,
        "rounds": args.rounds,
        "rows": rows,
    }))
}

/// Returns the version of a CPython: `python3` can be a script that chooses one.
fn version_of(python: &Path) -> Result<String> {
    let say = "import platform; print(platform.python_version())";
    let said = tool::output(Command::new(python).args(["-I", "-c", say]))?;
    Ok(String::from_utf8_lossy(&said).trim().to_owned())
}

/// A program that is ended with its turn.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn turn(bench: &mut Bench, args: &Args, frames: u32, kind: &str, options: &[&str]) -> Result<Turn> {
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
    let times: Vec<f64> =
        lines.by_ref().take(args.batches as usize).map(|line| Ok(line?.parse()?)).collect::<Result<_>>()?;
    // The program waits a moment before it ends, and with it the recording.
    let program = match &recording {
        Some(recording) => ProgramRuns::of(recording.pid())?.nanoseconds_each(),
        None => f64::NAN,
    };
    if let Some(recording) = recording {
        let recorded = recording.finish()?;
        if recorded.session["loss"]["records_lost"] != 0 {
            bail!("records were lost: {}", recorded.session["loss"]);
        }
    }
    if times.len() != args.batches as usize {
        bail!("{} batches instead of {}", times.len(), args.batches);
    }
    Ok(Turn { call: Spread::of(times).median, program })
}
