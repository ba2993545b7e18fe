//! Memory of `record`, with 8 processes and 4 communicators in each.

use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::{
    Repeated,
    spread::Spread,
    traced_job::{Bench, status_kib, watch},
};

/// Upper limit of the peak.
const BUDGET_MIB: f64 = 64.0;

#[derive(Debug, Serialize)]
struct Row {
    level: &'static str,
    buffer: &'static str,
    /// `VmHWM`: peak of resident memory of all kinds. It includes pages of the kernel's buffer that
    /// `ncclflow` has mapped, as far as `RssFile` and `RssShmem` count them.
    peak_mib: Spread,
    /// Peak of `RssAnon`: memory that the program itself has allocated.
    anonymous_mib: Spread,
    /// Size of the kernel's buffer by `session.json`, whether counted above or not.
    kernel_buffer_mib: f64,
    records: u64,
    /// Highest `peak_mib`, divided by the budget of 64 MiB.
    ratio: f64,
}

pub(crate) fn run(args: &Repeated) -> Result<Value> {
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
            let recorded = recording.finish()?;
            let session = &recorded.session;
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
            records = recorded.records_delivered();
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
