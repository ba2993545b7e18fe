//! Time from the start of the program to the first probe armed.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::{
    bench::{Bench, output},
    job::Job,
    table::{Spread, Table},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Level of tracing
    #[arg(long, default_value = "flow")]
    level: String,
}

/// Moments of `session.json`'s `attach`, and how long after the program was started it was armed.
const MOMENTS: [&str; 6] =
    ["resolved_ms", "loaded_ms", "first_probe_ms", "attached_ms", "armed_ms", "exec_to_armed_ms"];

/// Ways to attach: page cache dropped; page cache warm; page cache warm and layouts cached.
const WAYS: [&str; 3] = ["cold", "warm", "cached"];

pub(crate) fn run(bench: &mut Bench, args: &Args) -> Result<Value> {
    // A job that waits: nothing of it runs while we attach.
    let job = bench.job("--ranks 2")?;
    let cache = bench.fresh("cache");
    // This fills the cache.
    attach(bench, args, &job, Some(&cache))?;
    let mut samples = WAYS.map(|way| (way, Vec::new()));
    for round in 0..bench.rounds {
        for (way, samples) in &mut samples {
            eprintln!("round {} of {}: {way}", round + 1, bench.rounds);
            // Some virtual machines do not let it be dropped.
            if *way == "cold" && drop_page_cache(&bench.library).is_err() {
                continue;
            }
            samples.push(attach(bench, args, &job, (*way == "cached").then_some(&*cache))?);
        }
    }
    job.go()?;
    job.summary()?;
    let mut table = Table::default();
    for (way, samples) in samples {
        let spread = |key| Spread::of(samples.iter().filter_map(|sample: &Value| sample[key].as_f64()));
        let figures = MOMENTS.map(|key| (key, json!(spread(key))));
        table.add([("way", json!(way))].into_iter().chain(figures));
    }
    Ok(json!({
        "level": args.level,
        "library_bytes": fs::metadata(&bench.library)?.len(),
        "ways": table.into_json(),
    }))
}

/// Attaches once. Returns `attach` of `session.json`, and the time from before the program was executed until
/// it was armed.
fn attach(bench: &mut Bench, args: &Args, job: &Job, cache: Option<&Path>) -> Result<Value> {
    let out = bench.fresh("out");
    let mut command = Command::new(bench.programs.join("ncclflow"));
    command
        .args(["record", "-q", "-d", "0.1", "--level", &args.level, "-p", &job.pid_list(), "-o"])
        .arg(&out);
    match cache {
        Some(cache) => command.arg("--cache-dir").arg(cache),
        None => command.arg("--no-cache"),
    };
    let before = monotonic_ns();
    output(command.stdin(Stdio::null()))?;
    let session: Value = serde_json::from_slice(&fs::read(out.join("session.json"))?)?;
    let mut attach = session["attach"].clone();
    let armed = attach["armed_monotonic_ns"].as_u64().context("the session was never armed")?;
    #[expect(clippy::cast_precision_loss, reason = "a time span")]
    let span = armed.saturating_sub(before) as f64 / 1e6;
    attach["exec_to_armed_ms"] = json!(span);
    Ok(attach)
}

/// Drops the page cache: only pages that are mapped stay in memory. The job has mapped the pages of the
/// library that it needs.
fn drop_page_cache(library: &Path) -> Result<()> {
    let _ = Command::new("sync").arg(library).status();
    fs::write("/proc/sys/vm/drop_caches", "3").context("dropping the page cache")
}

/// Returns the time in nanoseconds, by the clock that records use.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}
