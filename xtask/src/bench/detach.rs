//! How long the probes take to go, after the results are written.

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;

use super::{figure::Spread, lab::Bench};

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
    processes: u32,
    level: &'static str,
    probes: usize,
    total_ms: Spread,
    ms_per_probe: Spread,
    /// Time per probe, against that of the first row.
    ratio: f64,
}

pub(crate) fn run(args: &Args) -> Result<Value> {
    let mut bench = Bench::prepare(&args.nccl, "detach")?;
    let mut rows: Vec<Row> = Vec::new();
    println!("\n{:<28} {:>7} {:>24} {:>24} {:>7}", "", "probes", "ms", "ms per probe", "ratio");
    for (mode, processes, level) in [
        ("threads", 1, "flow"),
        ("threads", 1, "steps"),
        ("processes", 2, "steps"),
        ("processes", 4, "steps"),
    ] {
        let ranks = processes.max(2).to_string();
        let job = bench.job(&["--ranks", &ranks, "--mode", mode])?;
        let (mut times, mut probes) = (Vec::new(), 0);
        for _ in 0..args.rounds {
            let recording = bench.record(&job, &["--level", level])?;
            recording.interrupt()?;
            let recorded = recording.finish()?;
            probes = recorded.session["probes"].as_array().map_or(0, Vec::len);
            times.push(detached_ms(&recorded.said)?);
        }
        #[expect(clippy::cast_precision_loss, reason = "a few probes")]
        let each = times.iter().map(|time| time / probes.max(1) as f64);
        let ms_per_probe = Spread::of(each.collect::<Vec<_>>());
        let first = rows.first().map_or(ms_per_probe.median, |row| row.ms_per_probe.median);
        let ratio = ms_per_probe.median / first;
        let row = Row { processes, level, probes, total_ms: Spread::of(times), ms_per_probe, ratio };
        println!(
            "{:<28} {:>7} {:>24} {:>24} {:>7.2}",
            format!("{processes} processes, --level {level}"),
            row.probes,
            row.total_ms.to_string(),
            row.ms_per_probe.to_string(),
            row.ratio
        );
        rows.push(row);
    }
    Ok(serde_json::to_value(rows)?)
}

fn detached_ms(said: &str) -> Result<f64> {
    let time = said.lines().find_map(|line| line.strip_prefix("detached in ")?.strip_suffix(" ms"));
    time.and_then(|time| time.parse().ok()).context("ncclflow did not say how long detaching took")
}
