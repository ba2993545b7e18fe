//! Cost of a call stack for the call. A Python program calls NCCL in a tight loop, untraced, traced, and
//! traced with stacks, in turn.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    bench::{Bench, of_tests, output},
    dump::Ended,
    process::{Statistics, program_runs},
    table::{Spread, Table},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The CPython that calls it
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
}

/// Shapes: frames of the stack, and whether the stack was sent before. Each frame is of another function,
/// except in recursive ones.
const SHAPES: [(u32, &str); 7] =
    [(3, "known"), (12, "known"), (24, "known"), (12, "recursive"), (4, "new"), (12, "new"), (24, "new")];
/// Options of `record` by the ways: the first is not traced.
const WAYS: [&str; 3] = ["", "--level api", "--level api --stacks --stack-depth 48"];
/// Batches of 2,000 calls in a turn.
const BATCHES: usize = 10;

/// Times of a turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Nanoseconds of a call: the median of the batches.
    call: f64,
    /// Nanoseconds of the kernel side's program for a hit, by the kernel's own count. This is steady beside
    /// what else the machine does, but has neither the trap nor the reader's work.
    program: f64,
}

pub(crate) fn run(bench: &mut Bench, args: &Args) -> Result<Value> {
    let _statistics = Statistics::on()?;
    let version = version_of(&args.python)?;
    eprintln!("CPython {version}");
    let mut table = Table::default();
    for (frames, kind) in SHAPES {
        let mut turns = WAYS.map(|_| Vec::new());
        for round in 0..bench.rounds {
            // Each round begins with another way.
            for step in 0..WAYS.len() {
                let at = (round + step) % WAYS.len();
                let turn = turn(bench, &args.python, (frames, kind), WAYS[at])
                    .with_context(|| format!("`{}` with {frames} frames", WAYS[at]))?;
                turns[at].push(turn);
            }
        }
        let of = |turns: &Vec<Turn>, value: fn(&Turn) -> f64| Spread::of(turns.iter().map(value));
        let [untraced, api, stacks] = turns.each_ref().map(|turns| of(turns, |turn| turn.call));
        let [_, api_program, stacks_program] = turns.each_ref().map(|turns| of(turns, |turn| turn.program));
        table.add([
            ("frames", json!(frames)),
            ("stacks", json!(kind)),
            ("untraced_ns", json!(untraced)),
            ("api_ns", json!(api)),
            ("api_with_stacks_ns", json!(stacks)),
            ("more_us", json!((stacks.median - api.median) / 1e3)),
            ("api_program_ns", json!(api_program)),
            ("api_with_stacks_program_ns", json!(stacks_program)),
            ("program_more_us", json!((stacks_program.median - api_program.median) / 1e3)),
        ]);
    }
    Ok(json!({ "python": version, "rows": table.into_json() }))
}

/// Returns the version of a CPython: `python3` can be a script that chooses one.
fn version_of(python: &Path) -> Result<String> {
    let say = "import platform; print(platform.python_version())";
    let said = output(Command::new(python).args(["-I", "-c", say]))?;
    Ok(String::from_utf8_lossy(&said).trim().to_owned())
}

fn turn(bench: &mut Bench, python: &Path, (frames, kind): (u32, &str), options: &str) -> Result<Turn> {
    let go = bench.fresh("go");
    let mut program = Command::new(python)
        .arg(of_tests("e2e/tests/python/stacks_bench.py"))
        .args([&bench.library, &go])
        .args([&frames.to_string(), kind, &BATCHES.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{}`", python.display()))?;
    let stdout = program.stdout.take().context("it has no output")?;
    let _program = Ended(vec![program]);
    let mut lines = BufReader::new(stdout).lines();
    let ready = lines.next().context("it ended")??;
    let (_, pid) = ready.split_once(' ').context("it is not ready")?;
    let recorded = (!options.is_empty()).then(|| bench.record(pid, &format!("{options} --files none")));
    let recording = recorded.transpose()?;
    fs::File::create(&go)?;
    let times: Vec<f64> =
        lines.by_ref().take(BATCHES).map(|line| Ok(line?.parse()?)).collect::<Result<_>>()?;
    ensure!(times.len() == BATCHES, "{} batches instead of {BATCHES}", times.len());
    let mut program = f64::NAN;
    if let Some(recording) = recording {
        // The program waits a moment before it ends, and with it the recording.
        let (runs, nanoseconds) = program_runs(recording.pid())?;
        #[expect(clippy::cast_precision_loss, reason = "far less than 2^52")]
        let each = nanoseconds as f64 / runs as f64;
        program = each;
        let loss = &recording.finish()?.json["loss"];
        ensure!(loss["records_lost"] == 0, "records were lost: {loss}");
    }
    Ok(Turn { call: Spread::of(times).median, program })
}
