//! `cargo xtask bench saturate`: a job that never pauses, for a long time: delivered + lost = hits, exactly,
//! by two counts of the kernel's.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::{
    program_runs::{ProgramRuns, Statistics},
    traced_job::{Bench, signal, status_kib, watch},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// NCCL version to run, like 2.27.5 or 2.28.9-cu13
    #[arg(long, value_name = "VERSION", default_value = "2.27.5")]
    nccl: String,

    /// How long
    #[arg(long, value_name = "SECS", default_value_t = 600)]
    seconds: u64,

    /// What is recorded
    #[arg(long, default_value = "steps", value_parser = ["flow", "steps"])]
    level: String,

    /// How records come out of the kernel
    #[arg(long, default_value = "ring", value_parser = ["ring", "perf"])]
    buffer: String,
}

#[derive(Debug, Default, Serialize)]
struct Totals {
    seconds: u64,
    /// Runs of the programs, by the kernel's statistics (`kernel.bpf_stats_enabled`).
    runs: u64,
    hits: u64,
    /// Number of hits, and of records that walks made.
    records: u64,
    delivered: u64,
    lost: u64,
    dropped: u64,
    disarmed: u64,
    unaccounted: u64,
    hits_per_second: u64,
    peak_rss_mib: u64,
    queue_peak_bytes: u64,
    output_bytes: u64,
}

pub(crate) fn run(args: &Args) -> Result<Value> {
    let mut bench = Bench::prepare(&args.nccl, "saturate")?;
    let _statistics = Statistics::on()?;
    let timeout = (args.seconds + 120).to_string();
    let job = bench.job(&[
        "--ranks",
        "4",
        "--ops",
        "allreduce",
        "--bytes",
        "65536",
        "--iters",
        "1000000000",
        "--timeout",
        &timeout,
    ])?;
    let mut recording = bench.record(&job, &["--level", &args.level, "--buffer", &args.buffer])?;
    job.go()?;
    println!(
        "a job of 4 ranks that never pauses, for {} s; it writes to {}",
        args.seconds,
        recording.output().display()
    );
    let mut peak = 0;
    watch(Duration::from_secs(args.seconds), || {
        peak = peak.max(status_kib(recording.pid(), "VmHWM"));
        recording.is_running()
    });
    // There are no hits after this, so both counts are of the same hits.
    for &pid in job.pids() {
        signal(pid, "STOP")?;
    }
    std::thread::sleep(Duration::from_millis(200));
    let ProgramRuns { runs, .. } = ProgramRuns::of(recording.pid())?;
    let output_bytes = bytes_below(recording.output());
    recording.interrupt()?;
    let session = recording.finish()?.session;
    let mut totals = Totals { seconds: args.seconds, runs, output_bytes, ..Totals::default() };
    let number = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
    for probe in session["probes"].as_array().context("the session has no probes")? {
        let [hits, delivered, lost, dropped, disarmed] =
            ["hits", "delivered", "lost", "dropped", "disarmed"].map(|key| number(&probe[key]));
        if hits != delivered + lost + dropped + disarmed {
            bail!("delivered + lost + dropped + disarmed is not hits: {probe}");
        }
        // Records of a walk are counted one by one, beside the probe's own record; a walk is one run.
        if probe["part"].is_null() {
            totals.hits += hits;
        }
        totals.records += hits;
        totals.delivered += delivered;
        totals.lost += lost;
        totals.dropped += dropped;
        totals.disarmed += disarmed;
    }
    totals.unaccounted = number(&session["loss"]["records_unaccounted"]);
    totals.hits_per_second = totals.hits / args.seconds.max(1);
    totals.peak_rss_mib = peak / 1024;
    totals.queue_peak_bytes = number(&session["buffer"]["queue_peak_bytes"]);
    if totals.hits != totals.runs || totals.unaccounted != 0 {
        bail!("{} hits, {} runs, {} unaccounted", totals.hits, totals.runs, totals.unaccounted);
    }
    println!("delivered + lost + dropped + disarmed = hits = runs");
    Ok(serde_json::to_value(totals)?)
}

/// Sums the bytes of all files below a folder.
fn bytes_below(folder: &std::path::Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}
