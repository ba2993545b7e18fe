//! `cargo xtask bench dump`: jobs on the bed whose processes hold ballast beside NCCL's memory, and a job of
//! Python programs that hangs, dumped several times by a release build.

use std::{
    path::PathBuf,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde_json::{Value, json};

use test_support::train::start_rank;

use super::{spread::Spread, traced_job::Bench};

/// Budget: a process of 2 GiB in half a second.
const BUDGET_MIB: u64 = 2048;
const BUDGET_MS: u64 = 500;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Version of NCCL
    #[arg(long, default_value = "2.27.5")]
    nccl: String,
    /// Memory that a process fills besides, in MiB; a line of the table each
    #[arg(long, value_delimiter = ',', default_value = "0,512,2048")]
    ballast: Vec<usize>,
    /// Address space that a process has looked at besides, in GiB
    #[arg(long, default_value_t = 0)]
    mapped: u64,
    /// NCCL keeps its list of communicators, as it does by default from 2.24 on; the bed's default is that it
    /// does not
    #[arg(long)]
    listed: bool,
    /// Ranks, a process each
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=32))]
    ranks: u32,
    /// Processes of the job of Python programs; 0: without it
    #[arg(long, default_value_t = 8)]
    python_ranks: u32,
    /// The CPython that they run in
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Dumps of each
    #[arg(long, default_value_t = 10)]
    rounds: usize,
}

/// A line of the table; times in milliseconds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    ballast_mib: usize,
    scanned_mib: u64,
    scan_median_ms: u64,
    scan_max_ms: u64,
    /// Time of the whole program, for all processes, without the time between readings.
    program_median_ms: u64,
}

pub(super) fn run(args: &Args) -> Result<Value> {
    let mut bench = Bench::prepare(&args.nccl, "dump")?;
    let rows: Result<Vec<Row>> =
        args.ballast.iter().map(|ballast| measure(args, &mut bench, *ballast)).collect();
    let rows = rows?;
    eprintln!("ballast MiB  scanned MiB  scan median ms  scan max ms  program median ms");
    for row in &rows {
        eprintln!(
            "{:>11}  {:>11}  {:>14}  {:>11}  {:>17}",
            row.ballast_mib, row.scanned_mib, row.scan_median_ms, row.scan_max_ms, row.program_median_ms
        );
    }
    let largest = rows.iter().filter(|row| row.scanned_mib >= BUDGET_MIB).min_by_key(|row| row.scanned_mib);
    if let Some(row) = largest {
        let per_budget = row.scan_median_ms * BUDGET_MIB / row.scanned_mib;
        eprintln!("a process of 2 GB: {per_budget} ms (budget {BUDGET_MS} ms)");
    }
    let python = if args.python_ranks > 0 { Some(measure_python(args, &mut bench)?) } else { None };
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(json!({
        "bench": "dump",
        "nccl": args.nccl,
        "ranks": args.ranks,
        "mappedGib": args.mapped,
        "listed": args.listed,
        "rounds": args.rounds,
        "cores": cores,
        "rows": rows,
        "python": python,
    }))
}

fn measure(args: &Args, bench: &mut Bench, ballast: usize) -> Result<Row> {
    let ballast_text = ballast.to_string();
    let (ranks, mapped) = (args.ranks.to_string(), args.mapped.to_string());
    let mut arguments = vec!["--mode", "processes", "--ranks", &ranks, "--channels", "2"];
    arguments.extend(["--ballast", &ballast_text, "--mapped", &mapped]);
    if args.listed {
        arguments.extend(["--env", "NCCL_RAS_ENABLE=1"]);
    }
    let job = bench.job(&arguments)?;
    let pids = job.pid_list();
    let (mut scans, mut scanned, mut times) = (Vec::new(), 0, Vec::new());
    for _ in 0..args.rounds {
        let started = Instant::now();
        let output = Command::new(bench.programs.join("ncclflow"))
            .args(["dump", "--json", "--interval", "0.01", "-p", &pids])
            .output()
            .context("starting ncclflow")?;
        let took = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        // There are three readings, as nothing moves.
        times.push(took.saturating_sub(20));
        let dump: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        for process in dump["processes"].as_array().into_iter().flatten() {
            let scan = &process["scan"];
            let (Some(ms), Some(bytes)) = (scan["milliseconds"].as_u64(), scan["scannedBytes"].as_u64())
            else {
                bail!("nothing was scanned (root?): {process}");
            };
            scans.push(ms);
            scanned = bytes >> 20;
        }
    }
    scans.sort_unstable();
    times.sort_unstable();
    let median = |sorted: &[u64]| sorted.get(sorted.len() / 2).copied().unwrap_or(0);
    Ok(Row {
        ballast_mib: ballast,
        scanned_mib: scanned,
        scan_median_ms: median(&scans),
        scan_max_ms: scans.last().copied().unwrap_or(0),
        program_median_ms: median(&times),
    })
}

/// Budget of all Python ranks of a host: two seconds, the second between readings included.
const PYTHON_BUDGET_MS: f64 = 2000.0;

/// Processes that end when this is dropped.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Dumps a job of Python programs, one of which stays away from a collective: whole runs, as a user starts
/// them.
fn measure_python(args: &Args, bench: &mut Bench) -> Result<Value> {
    const PATIENCE: Duration = Duration::from_secs(120);
    let folder = bench.fresh("python");
    std::fs::create_dir(&folder)?;
    let bed = bench.programs.join("libncclflow_bed.so");
    let nvml = bench.programs.join("libnvidia_ml.so");
    let mut ranks = Ranks(Vec::new());
    for rank in 0..args.python_ranks {
        let (command, number) = (Command::new(&args.python), (rank, args.python_ranks));
        let child = start_rank(command, [&bed, &bench.library, &nvml], &folder, number, &[]);
        ranks.0.push(child.with_context(|| format!("starting `{}`", args.python.display()))?);
    }
    let pids = ranks.0.iter().map(|child| child.id().to_string()).collect::<Vec<_>>().join(",");
    let dump = || -> Result<(f64, String)> {
        let begun = Instant::now();
        let output = Command::new(bench.programs.join("ncclflow"))
            .args(["dump", "--json", "-p", &pids])
            .output()
            .context("starting ncclflow")?;
        let took = begun.elapsed().as_secs_f64() * 1e3;
        Ok((took, String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    let begun = Instant::now();
    while !dump()?.1.contains("in load_batch") {
        if begun.elapsed() > PATIENCE {
            bail!("no dump names the line at which the absent rank is");
        }
    }
    let times = (0..args.rounds).map(|_| dump().map(|(took, _)| took)).collect::<Result<Vec<_>>>()?;
    let spread = Spread::of(times);
    eprintln!(
        "{} Python ranks, one of which stays away: {spread} ms a dump, the second between readings included (budget \
         {PYTHON_BUDGET_MS} ms)",
        args.python_ranks
    );
    Ok(json!({ "ranks": args.python_ranks, "program_ms": spread }))
}
