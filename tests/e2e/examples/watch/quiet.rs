//! `ncclflow watch --all` beside jobs that compute, evaluate, write checkpoints, send, stand idle, end and start again: no
//! alert may begin. The bed compresses time: phases of minutes take up to 30 s.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use ncclflow_e2e::harness::{job::in_cache, programs, watcher::Watcher, world::World};
use serde_json::Value;

/// What the jobs do, one after the other, and how many seconds each lasts.
const JOBS: [(&str, u64); 4] = [
    ("--phases 30 --iters 1000000000 --bytes 262144 --ops allreduce,allgather --comms 2 --sync", 180),
    ("--iters 1000000000 --bytes 1048576 --comms 3 --interval-ms 20", 60),
    ("--stages 2 --iters 1000000000 --bytes 4096 --ops allreduce,sendstage,sendstage", 60),
    // It ends its work, and holds its communicators.
    ("--iters 20 --comms 2 --hold-file {}/held", 60),
];

pub(super) fn run(minutes: usize, out: &Path) -> Result<bool> {
    let ends = Instant::now() + Duration::from_secs(60 * minutes as u64);
    let (ncclflow, double) =
        (programs::ncclflow().context("no program")?, programs::nvml_double().context("no double")?);
    // The bed's jobs have the same GPUs: one after the other.
    let states = out.join("gpus");
    fs::write(&states, "")?;
    let variables = [("NCCLFLOW_NVML", &double), ("NVML_DOUBLE_STATES", &states)]
        .map(|(name, path)| (name.to_owned(), path.display().to_string()));
    let watcher = Watcher::start_with(&ncclflow, "--all", &variables)?;
    let libraries = in_cache();
    let mut pids: BTreeSet<u64> = BTreeSet::new();
    let mut jobs = 0;
    for number in 0.. {
        if Instant::now() >= ends {
            break;
        }
        let (workload, seconds) = JOBS[number % JOBS.len()];
        let version = libraries
            .get(number / JOBS.len() % libraries.len().max(1))
            .context("no library is in the cache")?;
        let over = if number % 3 == 0 { "" } else { "--env NCCL_SHM_DISABLE=0" };
        let words = format!("--mode processes --ranks 4 --gpu-states {} {over} {workload}", states.display());
        let job = World::start(version, &words).context("something is missing; see above")?;
        pids.extend(job.bed.ready.pids.iter().map(|pid| u64::from(*pid)));
        job.bed.go()?;
        jobs += 1;
        thread::sleep(Duration::from_secs(seconds).min(ends.saturating_duration_since(Instant::now())));
        println!("job {jobs}, {version}: {workload}");
    }
    // Other jobs of this host may hang.
    let is_ours = |event: &Value| {
        let all = event["job"]["pids"].as_array().into_iter().flatten();
        all.filter_map(Value::as_u64).any(|pid| pids.contains(&pid))
    };
    let (begun, _) = watcher.begun_and_ended();
    let ours: Vec<&Value> = begun.iter().filter(|event| is_ours(event)).collect();
    let alerts: Vec<&&Value> = ours.iter().filter(|event| event["kind"] != "waiting").collect();
    for alert in &alerts {
        println!("{}: {}", alert["kind"], alert["sentence"]);
    }
    fs::write(out.join("quiet.json"), serde_json::to_vec_pretty(&watcher.events())?)?;
    println!("{jobs} jobs; {} waits, {} alerts (none may begin)", ours.len() - alerts.len(), alerts.len());
    Ok(alerts.is_empty())
}
