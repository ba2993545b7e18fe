//! `cargo xtask bench detach`: time that detaching takes after the results are written: with links to many
//! uprobes, where the kernel has them, and with one link to each.

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;

use super::{Repeated, spread::Spread, traced_job::Bench};

#[derive(Debug, Serialize)]
struct Row {
    links: String,
    processes: u32,
    level: &'static str,
    probes: usize,
    total_ms: Spread,
    ms_per_probe: Spread,
    /// Time per probe, divided by that of the first row with the same kind of links.
    ratio: f64,
}

/// Jobs: how ranks run, number of processes, level.
const JOBS: [(&str, u32, &str); 5] = [
    ("threads", 1, "flow"),
    ("threads", 1, "steps"),
    ("processes", 2, "steps"),
    ("processes", 4, "steps"),
    ("processes", 8, "steps"),
];

pub(crate) fn run(args: &Repeated) -> Result<Value> {
    let mut bench = Bench::prepare(&args.nccl, "detach")?;
    let mut rows: Vec<Row> = Vec::new();
    println!("\n{:<36} {:>7} {:>24} {:>24} {:>7}", "", "probes", "ms", "ms per probe", "ratio");
    let ways = ["auto", "perf"].into_iter().flat_map(|links| JOBS.map(|job| (links, job)));
    for (links, (mode, processes, level)) in ways {
        let ranks = processes.max(2).to_string();
        let job = bench.job(&["--ranks", &ranks, "--mode", mode])?;
        let (mut times, mut probes, mut found) = (Vec::new(), 0, String::new());
        for _ in 0..args.rounds {
            let recording = bench.record(&job, &["--level", level, "--links", links])?;
            recording.interrupt()?;
            let recorded = recording.finish()?;
            let (detached_probes, ms) = detached(&recorded.said)?;
            (probes, found) =
                (detached_probes, recorded.session["attach"]["links"].as_str().unwrap_or("?").to_owned());
            times.push(ms);
        }
        #[expect(clippy::cast_precision_loss, reason = "a few probes")]
        let each = times.iter().map(|time| time / probes.max(1) as f64);
        let ms_per_probe = Spread::of(each.collect::<Vec<_>>());
        let first = rows
            .iter()
            .find(|row| row.links == found)
            .map_or(ms_per_probe.median, |row| row.ms_per_probe.median);
        let ratio = ms_per_probe.median / first;
        let row =
            Row { links: found, processes, level, probes, total_ms: Spread::of(times), ms_per_probe, ratio };
        println!(
            "{:<36} {:>7} {:>24} {:>24} {:>7.2}",
            format!("{}: {processes} processes, --level {level}", row.links),
            row.probes,
            row.total_ms.to_string(),
            row.ms_per_probe.to_string(),
            row.ratio
        );
        rows.push(row);
    }
    Ok(serde_json::to_value(rows)?)
}

/// Reads how many probes were detached, and in how many milliseconds.
fn detached(said: &str) -> Result<(usize, f64)> {
    let between = |before: &str, after: &str| {
        said.lines().find_map(|line| line.split_once(before)?.1.strip_suffix(after))
    };
    let probes = between("results are written; detaching ", " probes").and_then(|probes| probes.parse().ok());
    let time = between("detached in ", " ms").and_then(|time| time.parse().ok());
    probes.zip(time).context("ncclflow did not say how long detaching took")
}
