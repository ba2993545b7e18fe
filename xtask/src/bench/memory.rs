//! Memory of `record`, with 8 processes and 4 communicators in each.

use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::{
    figure::Spread,
    lab::{Bench, status_kib, watch},
};

/// What it may be.
const BUDGET_MIB: f64 = 64.0;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// NCCL version to run, like 2.27.5 or 2.28.9-cu13
    #[arg(long, value_name = "VERSION", default_value = "2.27.5")]
    nccl: String,

    /// How often each measurement is made
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

#[derive(Debug, Serialize)]
struct Row {
    level: &'static str,
    buffer: &'static str,
    /// `VmHWM`: the most that was resident, of all kinds. The pages of the kernel's buffer that we have mapped and read are the
    /// kernel's memory; what `RssFile` and `RssShmem` count of them is in.
    peak_mib: Spread,
    /// `RssAnon` at its highest: what the program itself has allocated.
    anonymous_mib: Spread,
    /// The kernel's buffer, as `session.json` has it: in the kernel, whether counted above or not.
    kernel_buffer_mib: f64,
    records: u64,
    /// `peak_mib` against the budget of 64 MiB.
    ratio: f64,
}

pub(crate) fn run(args: &Args) -> Result<Value> {
    let mut bench = Bench::prepare(&args.nccl, "memory")?;
    let mut rows = Vec::new();
    println!(
        "\n{:<16} {:>24} {:>24} {:>14} {:>10} {:>10}",
        "", "peak RSS, MiB", "of it its own, MiB", "buffer, MiB", "records", "of 64 MiB"
    );
    for (level, buffer) in [("flow", "ring"), ("steps", "ring"), ("steps", "perf")] {
        let (mut peaks, mut own, mut records, mut kernel_buffer_mib) = (Vec::new(), Vec::new(), 0, 0.0);
        for _ in 0..args.rounds {
            let job = bench.job(&[
                "--ranks",
                "8",
                "--mode",
                "processes",
                "--comms",
                "4",
                "--ops",
                "allreduce,sendrecv",
                "--bytes",
                "65536",
                "--iters",
                "40",
                "--channels",
                "1",
                "--timeout",
                "300",
            ])?;
            let mut recording = bench.record(&job, &["--level", level, "--buffer", buffer])?;
            job.go()?;
            let (mut peak, mut anonymous) = (0, 0);
            watch(Duration::from_mins(5), || {
                peak = peak.max(status_kib(recording.pid(), "VmHWM"));
                anonymous = anonymous.max(status_kib(recording.pid(), "RssAnon"));
                recording.is_running()
            });
            job.finish()?;
            let session = recording.finish()?.session;
            let processes = session["targets"].as_array().map_or(0, Vec::len);
            let communicators = session["communicators"].as_array().map_or(0, Vec::len);
            if (processes, communicators) != (8, 32) {
                bail!("{processes} processes and {communicators} ranks were seen, and not 8 and 32");
            }
            #[expect(clippy::cast_precision_loss, reason = "mebibytes, for people")]
            let mib = |kib: u64| kib as f64 / 1024.0;
            peaks.push(mib(peak));
            own.push(mib(anonymous));
            kernel_buffer_mib = mib(session["buffer"]["bytes"].as_u64().unwrap_or(0) / 1024);
            let delivered = session["probes"].as_array().into_iter().flatten();
            records = delivered.filter_map(|probe| probe["delivered"].as_u64()).sum();
        }
        let peak_mib = Spread::of(peaks);
        let ratio = peak_mib.max / BUDGET_MIB;
        let row = Row {
            level,
            buffer,
            peak_mib,
            anonymous_mib: Spread::of(own),
            kernel_buffer_mib,
            records,
            ratio,
        };
        println!(
            "{:<16} {:>24} {:>24} {:>14.0} {:>10} {:>10.2}",
            format!("{level}, {buffer}"),
            row.peak_mib.to_string(),
            row.anonymous_mib.to_string(),
            row.kernel_buffer_mib,
            row.records,
            row.ratio
        );
        rows.push(row);
    }
    if rows.iter().any(|row| row.ratio > 1.0) {
        bail!("more than {BUDGET_MIB} MiB");
    }
    Ok(serde_json::to_value(rows)?)
}
