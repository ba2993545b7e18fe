//! `cargo xtask bench attach`: time from the start of the program to the first probe armed.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use super::{
    spread::Spread,
    traced_job::{Bench, WaitingJob},
};
use crate::tool;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// NCCL version to attach to, like 2.27.5 or 2.28.9-cu13
    #[arg(long, value_name = "VERSION", default_value = "2.32.3")]
    nccl: String,

    /// How often each way has its turn
    #[arg(long, default_value_t = 7)]
    rounds: usize,

    /// Level of tracing
    #[arg(long, default_value = "flow")]
    level: String,
}

/// Moments of `session.json`'s `attach`.
const MOMENTS: [&str; 5] = ["resolved_ms", "loaded_ms", "first_probe_ms", "attached_ms", "armed_ms"];

/// Ways to attach: page cache dropped; page cache warm; page cache warm and layouts cached.
const WAYS: [&str; 3] = ["cold", "warm", "cached"];

pub(crate) fn run(args: &Args) -> Result<Value> {
    let mut bench = Bench::prepare(&args.nccl, "attach")?;
    // A job that waits: nothing of it runs while we attach.
    let job = bench.job(&["--ranks", "2"])?;
    let cache = bench.fresh("cache");
    let mut can_drop = true;
    let mut figures: Map<String, Value> = Map::new();
    let mut samples: Vec<(&str, Vec<Value>)> = WAYS.iter().map(|way| (*way, Vec::new())).collect();
    for round in 0..args.rounds {
        for (way, samples) in &mut samples {
            eprintln!("round {} of {}: {way}", round + 1, args.rounds);
            if *way == "cold" {
                can_drop = can_drop && drop_page_cache(&bench.library).is_ok();
                if !can_drop {
                    continue;
                }
            }
            let cached = *way == "cached";
            if cached && round == 0 {
                // This fills the cache.
                attach(args, &mut bench, &job, Some(&cache))?;
            }
            samples.push(attach(args, &mut bench, &job, cached.then_some(&*cache))?);
        }
    }
    job.go()?;
    job.finish()?;
    for (way, samples) in samples {
        let of = |key: &str| samples.iter().filter_map(|sample| sample[key].as_f64()).collect::<Vec<_>>();
        let mut figure: Map<String, Value> =
            MOMENTS.iter().map(|key| ((*key).to_owned(), json!(Spread::of(of(key))))).collect();
        figure.insert("exec_to_armed_ms".to_owned(), json!(Spread::of(of("exec_to_armed_ms"))));
        figures.insert(way.to_owned(), Value::Object(figure));
    }
    Ok(json!({
        "bench": "attach",
        "nccl": args.nccl,
        "level": args.level,
        "rounds": args.rounds,
        "page_cache_dropped": can_drop,
        "library_bytes": fs::metadata(&bench.library)?.len(),
        "ways": figures,
    }))
}

/// Attaches once. Returns `attach` of `session.json`, and the time from before the program was executed until
/// it was armed.
fn attach(args: &Args, bench: &mut Bench, job: &WaitingJob, cache: Option<&Path>) -> Result<Value> {
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
    tool::output(command.stdin(Stdio::null()))?;
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
