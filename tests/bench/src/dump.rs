//! Dumps of jobs on the bed whose processes hold ballast beside NCCL's memory, and of a job of Python programs
//! that hangs.

use std::{
    fs,
    process::{Child, Command},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use test_support::train::start_rank;

use crate::{
    bench::Bench,
    table::{Spread, Table},
};

/// Budget: a process of 2 GiB in half a second.
const BUDGET_MIB: u64 = 2048;
const BUDGET_MS: f64 = 500.0;

/// Budget of all Python ranks of a host: two seconds, the second between readings included.
const PYTHON_BUDGET_MS: f64 = 2000.0;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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
    /// Processes of the job of Python programs; 0: without it
    #[arg(long, default_value_t = 8)]
    python_ranks: u32,
}

pub(crate) fn run(bench: &mut Bench, args: &Args) -> Result<Value> {
    let mut table = Table::default();
    for ballast in &args.ballast {
        measure(bench, args, *ballast, &mut table)?;
    }
    let python = if args.python_ranks > 0 { Some(measure_python(bench, args.python_ranks)?) } else { None };
    Ok(json!({
        "mapped_gib": args.mapped,
        "listed": args.listed,
        "cores": available_parallelism().map_or(1, usize::from),
        "rows": table.into_json(),
        "python": python,
    }))
}

fn measure(bench: &mut Bench, args: &Args, ballast: usize, table: &mut Table) -> Result<()> {
    let listed = if args.listed { "--env NCCL_RAS_ENABLE=1" } else { "" };
    let job = bench.job(&format!(
        "--mode processes --ranks 2 --channels 2 --ballast {ballast} --mapped {} {listed}",
        args.mapped
    ))?;
    let (mut scans, mut scanned_mib, mut times) = (Vec::new(), 0, Vec::new());
    for _ in 0..bench.rounds {
        let (ms, dump) = bench.dump(&["--interval", "0.01", "-p", &job.pid_list()])?;
        // There are three readings, as nothing moves.
        times.push(ms - 20.0);
        for process in dump["processes"].as_array().into_iter().flatten() {
            let scan = &process["scan"];
            let ms = scan["milliseconds"].as_f64().zip(scan["scannedBytes"].as_u64());
            let (ms, bytes) = ms.with_context(|| format!("nothing was scanned (root?): {process}"))?;
            scans.push(ms);
            scanned_mib = bytes >> 20;
        }
    }
    let scan_ms = Spread::of(scans);
    table.add([
        ("ballast_mib", json!(ballast)),
        ("scanned_mib", json!(scanned_mib)),
        ("scan_ms", json!(scan_ms)),
        // Of the whole program, for all processes, without the time between readings.
        ("program_ms", json!(Spread::of(times))),
    ]);
    if scanned_mib >= BUDGET_MIB {
        #[expect(clippy::cast_precision_loss, reason = "some thousand")]
        let share = BUDGET_MIB as f64 / scanned_mib as f64;
        eprintln!("a process of 2 GB: {:.0} ms (budget {BUDGET_MS} ms)", scan_ms.median * share);
    }
    Ok(())
}

/// Processes that end when this is dropped.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) Vec<Child>);

impl Drop for Ended {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Dumps a job of Python programs, one of which stays away from a collective: whole runs, as a user starts
/// them.
fn measure_python(bench: &mut Bench, ranks: u32) -> Result<Value> {
    const PATIENCE: Duration = Duration::from_secs(120);
    let folder = bench.fresh("python");
    fs::create_dir(&folder)?;
    let [bed, nvml] = ["libncclflow_bed.so", "libnvidia_ml.so"].map(|library| bench.programs.join(library));
    let mut job = Ended(Vec::new());
    for rank in 0..ranks {
        let python = Command::new("python3");
        let child = start_rank(python, [&bed, &bench.library, &nvml], &folder, (rank, ranks), &[]);
        job.0.push(child.context("starting `python3`")?);
    }
    let pids = job.0.iter().map(|child| child.id().to_string()).collect::<Vec<_>>().join(",");
    let begun = Instant::now();
    while !bench.dump(&["-p", &pids])?.1.to_string().contains("in load_batch") {
        ensure!(begun.elapsed() < PATIENCE, "no dump names the line at which the absent rank is");
    }
    let times = (0..bench.rounds).map(|_| Ok(bench.dump(&["-p", &pids])?.0)).collect::<Result<Vec<_>>>()?;
    let program_ms = Spread::of(times);
    eprintln!(
        "{ranks} Python ranks, one of which stays away: {program_ms} ms a dump, the second between readings included \
         (budget {PYTHON_BUDGET_MS} ms)"
    );
    Ok(json!({ "ranks": ranks, "program_ms": program_ms }))
}
