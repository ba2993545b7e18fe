//! Time that detaching takes after the recording is complete: with links to many uprobes, where the kernel has
//! them, and with one link to each.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{
    bench::Bench,
    table::{Spread, Table},
};

/// Jobs: how ranks run, number of processes, level.
const JOBS: [(&str, u32, &str); 5] = [
    ("threads", 1, "flow"),
    ("threads", 1, "steps"),
    ("processes", 2, "steps"),
    ("processes", 4, "steps"),
    ("processes", 8, "steps"),
];

pub(crate) fn run(bench: &mut Bench) -> Result<Value> {
    let mut table = Table::default();
    for wanted in ["auto", "perf"] {
        let mut first = None;
        for (mode, processes, level) in JOBS {
            let job = bench.job(&format!("--ranks {} --mode {mode}", processes.max(2)))?;
            let (mut times, mut probes, mut links) = (Vec::new(), 0, Value::Null);
            for _ in 0..bench.rounds {
                let recording =
                    bench.record(&job.pid_list(), &format!("--level {level} --links {wanted}"))?;
                let mut session = recording.interrupt()?;
                let (detached_probes, ms) = detached(&session.said)?;
                (probes, links) = (detached_probes, session.json["attach"]["links"].take());
                times.push(ms);
            }
            let ms_per_probe = Spread::of(times.iter().map(|time| time / f64::from(probes)));
            // Time per probe, divided by that of the first row with the same kind of links.
            let ratio = ms_per_probe.median / *first.get_or_insert(ms_per_probe.median);
            table.add([
                ("links", links),
                ("processes", json!(processes)),
                ("level", json!(level)),
                ("probes", json!(probes)),
                ("total_ms", json!(Spread::of(times))),
                ("ms_per_probe", json!(ms_per_probe)),
                ("ratio", json!(ratio)),
            ]);
        }
    }
    Ok(table.into_json())
}

/// Reads how many probes were detached, and in how many milliseconds.
fn detached(said: &str) -> Result<(u32, f64)> {
    let between = |before: &str, after: &str| {
        said.lines().find_map(|line| line.split_once(before)?.1.strip_suffix(after))
    };
    let probes = between("; detaching ", " probes").and_then(|probes| probes.parse().ok());
    let time = between("detached in ", " ms").and_then(|time| time.parse().ok());
    probes.zip(time).context("ncclflow did not say how long detaching took")
}
