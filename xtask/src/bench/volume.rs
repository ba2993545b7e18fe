//! `cargo xtask bench volume`: disk space of a recording, and the cost of writing and reading it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{spread::Spread, traced_job::Bench};
use crate::tool;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Recordings to measure too
    #[arg(value_name = "DIR")]
    recordings: Vec<PathBuf>,

    /// NCCL versions to run on the bed, like 2.27.5 or 2.28.9-cu13
    #[arg(long, value_name = "VERSION", num_args = 0.., default_values = ["2.27.5", "2.28.9-cu13"])]
    nccl: Vec<String>,

    /// How often each recording is written and read
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Output of `ncclflow-bench volume`.
#[derive(Debug, Deserialize)]
struct Volume {
    records: u64,
    raw_bytes: u64,
    launches: u64,
    messages: u64,
    bytes: u64,
    write_s: Vec<f64>,
    read_s: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Row {
    what: String,
    records: u64,
    launches: u64,
    messages: u64,
    raw_bytes: u64,
    bytes: u64,
    bytes_per_launch: f64,
    /// Bytes of a message; `None` where no messages are measured.
    bytes_per_message: Option<f64>,
    /// Seconds of CPU for a million records.
    write_s_per_million: Spread,
    read_s_per_million: Spread,
}

pub(crate) fn run(args: &Args) -> Result<Value> {
    println!(
        "{:<34} {:>9} {:>12} {:>10} {:>9} {:>10}  {:<22} read s/M",
        "recording of", "records", "raw bytes", "bytes", "a launch", "a message", "write s/M records"
    );
    let mut rows = Vec::new();
    for version in &args.nccl {
        let mut bench = Bench::prepare(version, "volume")?;
        for (what, level, job) in [
            (
                "one node, flow",
                "flow",
                &["--no-emulate", "--env", "NCCL_SHM_DISABLE=0", "--iters", "5000"][..],
            ),
            ("sockets, steps", "steps", &["--iters", "500"]),
        ] {
            let job =
                bench.job(&[&["--ranks", "2", "--ops", "allreduce", "--bytes", "262144"], job].concat())?;
            let recording = bench.record(&job, &["--level", level, "--files", "none"])?;
            job.go()?;
            job.finish()?;
            let (_, recorded) = recording.finish_keeping()?;
            let recorded = recorded.join("recording");
            rows.push(measure(&bench.programs, format!("NCCL {version}, {what}"), &recorded, args.rounds)?);
        }
    }
    if !args.recordings.is_empty() {
        let programs = crate::programs::build_release(&["ncclflow-bench"])?;
        for recording in &args.recordings {
            let name = recording.file_name().context("a recording without a name")?.to_string_lossy();
            rows.push(measure(&programs, name.into_owned(), recording, args.rounds)?);
        }
    }
    Ok(serde_json::to_value(rows)?)
}

fn measure(programs: &Path, what: String, recording: &Path, rounds: u32) -> Result<Row> {
    let mut program = Command::new(programs.join("ncclflow-bench"));
    program.arg("volume").arg(recording).args(["--rounds", &rounds.to_string()]);
    let volume: Volume = serde_json::from_slice(&tool::output(&mut program)?)?;
    #[expect(clippy::cast_precision_loss, reason = "a mean, for people")]
    let ratio = |over: u64| volume.bytes as f64 / over as f64;
    #[expect(clippy::cast_precision_loss, reason = "a mean, for people")]
    let per_million = |seconds: &[f64]| Spread::of(seconds.iter().map(|s| s * 1e6 / volume.records as f64));
    let row = Row {
        what,
        records: volume.records,
        launches: volume.launches,
        messages: volume.messages,
        raw_bytes: volume.raw_bytes,
        bytes: volume.bytes,
        bytes_per_launch: ratio(volume.launches.max(1)),
        bytes_per_message: (volume.messages > 0).then(|| ratio(volume.messages)),
        write_s_per_million: per_million(&volume.write_s),
        read_s_per_million: per_million(&volume.read_s),
    };
    println!(
        "{:<34} {:>9} {:>12} {:>10} {:>9.1} {:>10} {:>24} {:>24}",
        row.what,
        row.records,
        row.raw_bytes,
        row.bytes,
        row.bytes_per_launch,
        row.bytes_per_message.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes:.1}")),
        row.write_s_per_million.to_string(),
        row.read_s_per_million.to_string()
    );
    Ok(row)
}
