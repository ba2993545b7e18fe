//! What `ncclflow watch` costs: processor time and memory while it watches a job, how soon it knows the job, and the time
//! of jobs with and without it, in turn.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ncclflow_e2e::harness::watcher::Watcher;
use serde_json::{Value, json};

use crate::{
    bench::Bench,
    process::{Peak, cpu_seconds},
    table::{Spread, Table},
};

/// Budgets: percent of a processor without GPUs and with GPM of eight, memory, and time until a job is known.
const CPU_PERCENT: f64 = 0.5;
const CPU_PERCENT_WITH_GPUS: f64 = 2.0;
const MEMORY_MIB: f64 = 40.0;
const KNOWN_MS: f64 = 2000.0;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Communicators of each of the eight processes
    #[arg(long, default_value_t = 24)]
    comms: u32,
    /// Seconds for which the cost is measured
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Operations of a job that runs with and without it in turn; `--rounds` says how often
    #[arg(long, default_value_t = 200)]
    iters: u32,
}

pub(crate) fn run(bench: &mut Bench, args: &Args) -> Result<Value> {
    let mut table = Table::default();
    for with_gpus in [false, true] {
        cost(bench, args, with_gpus, &mut table)?;
    }
    let times = times(bench, args)?;
    Ok(json!({ "cost": table.into_json(), "times": times }))
}

/// Words and variables of a watch with the NVML double, or without GPUs.
fn watcher(bench: &Bench, states: Option<&Path>, pids: &str) -> Result<Watcher> {
    let double = bench.programs.join("libnvidia_ml.so").display().to_string();
    let program = bench.programs.join("ncclflow");
    match states {
        Some(states) => {
            let variables = [
                ("NCCLFLOW_NVML".to_owned(), double),
                ("NVML_DOUBLE_STATES".to_owned(), states.display().to_string()),
            ];
            Watcher::start_with(&program, &format!("-p {pids}"), &variables)
        }
        None => Watcher::start(&program, &format!("-p {pids}")),
    }
}

fn cost(bench: &mut Bench, args: &Args, with_gpus: bool, table: &mut Table) -> Result<()> {
    let states = bench.fresh("gpus");
    // Small buffers: 24 communicators of eight ranks would take 18 GB.
    let job = bench.job(&format!(
        "--mode processes --ranks 8 --comms {} --channels 1 --bytes 4096 --iters 1000000000 --interval-ms 50 \
         --env NCCL_BUFFSIZE=131072 --gpu-states {}",
        args.comms,
        states.display()
    ))?;
    job.go()?;
    let begun = Instant::now();
    let watcher = watcher(bench, with_gpus.then_some(states.as_path()), &job.pid_list())?;
    let known_ms = begun.elapsed().as_secs_f64() * 1e3;
    // What the search took is no part of what a second costs.
    thread::sleep(Duration::from_secs(5));
    let (before, since, mut peak) = (cpu_of_all(watcher.pid())?, Instant::now(), Peak::default());
    while since.elapsed() < Duration::from_secs(args.seconds) {
        peak.look(watcher.pid());
        thread::sleep(Duration::from_millis(100));
    }
    let cpu_percent = (cpu_of_all(watcher.pid())? - before) * 100.0 / since.elapsed().as_secs_f64();
    for pid in &job.pids {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).context("reading what a rank maps")?;
        ensure!(!maps.contains("[uprobes]"), "process {pid} was hit by a probe");
    }
    #[expect(clippy::cast_precision_loss, reason = "mebibytes, for people")]
    let mib = peak.resident_kib as f64 / 1024.0;
    let budget = if with_gpus { CPU_PERCENT_WITH_GPUS } else { CPU_PERCENT };
    table.add([
        ("gpus", json!(with_gpus)),
        ("cpu_percent", json!(cpu_percent)),
        ("cpu_ratio", json!(cpu_percent / budget)),
        ("peak_mib", json!(mib)),
        ("memory_ratio", json!(mib / MEMORY_MIB)),
        ("known_ms", json!(known_ms)),
        ("known_ratio", json!(known_ms / KNOWN_MS)),
        ("probes", json!(0)),
    ]);
    Ok(())
}

/// Returns the processor time of a process, of its children that have ended, and of those that live.
fn cpu_of_all(pid: u32) -> Result<f64> {
    let own = cpu_seconds(pid, true).context("the watch has ended")?;
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<u32> = lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    Ok(own + children.into_iter().filter_map(|pid| cpu_seconds(pid, true)).sum::<f64>())
}

/// Runs the same job with and without a watch, in turn: the difference lies within the noise, or it costs something.
fn times(bench: &mut Bench, args: &Args) -> Result<Value> {
    let mut seconds = [Vec::new(), Vec::new()];
    for round in 0..bench.rounds {
        // Each round begins with the other, as the first turn finds the machine in another state.
        for step in 0..2 {
            let at = (round + step) % 2;
            let job = bench
                .job(&format!("--mode processes --ranks 8 --comms 4 --bytes 4096 --iters {}", args.iters))?;
            let watcher = (at == 1).then(|| watcher(bench, None, &job.pid_list())).transpose()?;
            job.go()?;
            let summary = job.summary()?;
            drop(watcher);
            seconds[at].push(summary["seconds"].as_f64().context("the bed's seconds")?);
        }
    }
    let [without, with] = &seconds;
    let differences: Vec<f64> =
        with.iter().zip(without).map(|(with, without)| (with / without - 1.0) * 100.0).collect();
    #[expect(clippy::cast_precision_loss, reason = "a number of rounds")]
    let n = differences.len() as f64;
    let mean = differences.iter().sum::<f64>() / n;
    let squares: f64 = differences.iter().map(|value| (value - mean).powi(2)).sum();
    let error = (squares / (n - 1.0).max(1.0) / n).sqrt();
    eprintln!("the job's time with a watch: {mean:+.2} % (standard error {error:.2}), {n} rounds");
    Ok(json!({
        "without_seconds": Spread::of(without.iter().copied()),
        "with_seconds": Spread::of(with.iter().copied()),
        "difference_percent": mean,
        "standard_error": error,
    }))
}
