//! One run: a job, its fault, a recording, and what `check` says of that.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use ncclflow_e2e::harness::{
    cgroup::Cgroup, delayed_link::DelayedLink, namespaces::Namespaces, programs, recorder::Recorder,
};
use rustix::{
    process::{Pid, Signal, kill_process},
    time::{ClockId, clock_gettime},
};
use serde_json::{Value, json};

use super::{
    answer::Answer,
    draw::{Case, FaultKind, Way},
};
use crate::{bench::Bench, job::Job};

/// How long a job runs without its fault before anything else is done: what an iteration takes then.
const HEALTHY: Duration = Duration::from_secs(3);
/// The first part of it, in which connections are made.
const SETTLES: Duration = Duration::from_secs(1);
/// Time from one stop of a process to the next.
const STOPS_EVERY: Duration = Duration::from_millis(500);
/// Time from one grant of the processor to the next.
const PERIOD: Duration = Duration::from_millis(100);

/// What was said, and what was true.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) answer: Answer,
    /// Time of an iteration before the fault, by what the emulated GPUs note.
    pub(super) healthy_ms: f64,
    /// The same with the fault.
    pub(super) iteration_ms: f64,
}

/// Where the recording of a case is kept, and what it took.
pub(super) struct Kept(PathBuf);

impl Kept {
    pub(super) fn new(folder: &Path, seed: u64, run: u64) -> Self {
        Self(folder.join(format!("{seed}-{run}")))
    }

    fn recording(&self) -> PathBuf {
        self.0.join("recording")
    }

    fn times(&self) -> PathBuf {
        self.0.join("times.json")
    }

    fn keep(&self, case: &Case, recording: &Path, healthy_ms: f64, iteration_ms: f64) -> Result<()> {
        fs::create_dir_all(&self.0)?;
        let copied = Command::new("cp").arg("-r").arg(recording).arg(self.recording()).status()?;
        if !copied.success() {
            bail!("cannot keep `{}`", recording.display());
        }
        let times =
            json!({ "case": format!("{case:?}"), "healthy_ms": healthy_ms, "iteration_ms": iteration_ms });
        Ok(fs::write(self.times(), times.to_string())?)
    }

    /// Judges what was kept. `None`: nothing was.
    pub(super) fn again(&self, ncclflow: &Path, case: &Case) -> Result<Option<Trial>> {
        let Ok(times) = fs::read(self.times()) else { return Ok(None) };
        let times: Value = serde_json::from_slice(&times)?;
        if times["case"] != format!("{case:?}") {
            bail!("`{}` is of another case", self.0.display());
        }
        let ms = |key: &str| times[key].as_f64().with_context(|| format!("no `{key}`"));
        let [healthy_ms, iteration_ms] = [ms("healthy_ms")?, ms("iteration_ms")?];
        let answer = Answer::read(&check(ncclflow, &[self.recording()])?);
        Ok(Some(Trial { answer, healthy_ms, iteration_ms }))
    }
}

/// Runs a case. `None`: this machine lacks something that it needs.
pub(super) fn run(
    bench: &mut Bench,
    case: &Case,
    seconds: u64,
    kept: Option<&Kept>,
) -> Result<Option<Trial>> {
    let namespaces = match case.way {
        Way::Hosts => {
            let Some(made) = Namespaces::start(case.ranks) else { return Ok(None) };
            Some(made)
        }
        _ => None,
    };
    let delayed = match (&namespaces, case.fault.kind) {
        (Some(namespaces), FaultKind::Delay) => {
            let Some(made) = namespaces.delayed(case.fault.rank) else { return Ok(None) };
            Some(made)
        }
        _ => None,
    };
    let folder = bench.fresh("job");
    fs::create_dir(&folder)?;
    let job = Files {
        faults: folder.join("faults"),
        log: folder.join("iterations"),
        states: folder.join("states"),
    };
    let options = namespaces.as_ref().map_or_else(String::new, |namespaces| {
        format!("--namespaces {} --env NCCL_SOCKET_IFNAME=eth0", namespaces.prefix())
    });
    let running = bench.job(&format!("{} {} {options}", case.options(), job.options()))?;
    let network = Network { namespaces: namespaces.as_ref(), delayed: delayed.as_ref() };
    running.go()?;
    let begun = now();
    thread::sleep(HEALTHY);
    let healthy_until = now();
    let output = folder.join("recording");
    let record = || record(bench, case, seconds, &running, &job, &output);
    let between = Duration::from_secs_f64(case.between);
    let (recorder, fault, from) = if case.sees_begin {
        let recorder = record()?;
        thread::sleep(between);
        let from = now();
        (recorder, Slow::begin(case, &running, &job, network)?, from)
    } else {
        let from = now();
        let fault = Slow::begin(case, &running, &job, network)?;
        thread::sleep(between);
        (record()?, fault, from)
    };
    let Some(fault) = fault else { return Ok(None) };
    let (status, said) = recorder.finish()?;
    let until = now();
    drop(fault);
    let mended = now();
    thread::sleep(HEALTHY);
    let ended = now();
    drop(running);
    if !status.success() {
        bail!("ncclflow ended with {status}: {said}");
    }
    let answer = Answer::read(&check(&bench.programs.join("ncclflow"), std::slice::from_ref(&output))?);
    // Other work on this machine comes and goes: what is usual is looked at on both sides of the fault.
    let before_ms = iteration(&job.log, case.ranks, begun + SETTLES, healthy_until)?;
    let after_ms = iteration(&job.log, case.ranks, mended + SETTLES, ended)?;
    let healthy_ms = f64::midpoint(before_ms, after_ms);
    let iteration_ms = iteration(&job.log, case.ranks, from, until)?;
    if let Some(kept) = kept {
        kept.keep(case, &output, healthy_ms, iteration_ms)?;
    }
    fs::remove_dir_all(&folder)?;
    Ok(Some(Trial { answer, healthy_ms, iteration_ms }))
}

/// Files through which the bench and a job talk.
struct Files {
    faults: PathBuf,
    log: PathBuf,
    states: PathBuf,
}

impl Files {
    fn options(&self) -> String {
        let Self { faults, log, states } = self;
        format!(
            "--faults {} --iteration-log {} --gpu-states {}",
            faults.display(),
            log.display(),
            states.display()
        )
    }
}

/// CLOCK_MONOTONIC.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn record(
    bench: &Bench,
    case: &Case,
    seconds: u64,
    job: &Job,
    files: &Files,
    output: &Path,
) -> Result<Recorder> {
    let double = programs::nvml_double().context("no NVML double")?.display().to_string();
    let states = files.states.display().to_string();
    let environment = [("NCCLFLOW_NVML", &*double), ("NVML_DOUBLE_STATES", &*states)];
    let seconds = seconds.to_string();
    let options = ["--level", case.level, "-d", &seconds, "--files", "none"];
    Recorder::start_in(&bench.programs.join("ncclflow"), &job.pid_list(), output, &options, &environment)
}

/// What `check --json` prints.
pub(super) fn check(ncclflow: &Path, recordings: &[PathBuf]) -> Result<Value> {
    // The exit code tells what was found.
    let output = Command::new(ncclflow).args(["check", "--json"]).args(recordings).output()?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("`check`: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The network of a job whose hosts have one.
#[derive(Clone, Copy)]
struct Network<'a> {
    namespaces: Option<&'a Namespaces>,
    /// The link of the host whose messages can be delayed.
    delayed: Option<&'a DelayedLink>,
}

/// A fault that lasts until this is dropped.
struct Slow<'a> {
    faults: &'a Path,
    link: Option<(&'a Namespaces, u32)>,
    delayed: Option<&'a DelayedLink>,
    /// Ends with it.
    quota: Option<Cgroup>,
    stops: Option<(&'static AtomicBool, thread::JoinHandle<()>)>,
}

impl<'a> Slow<'a> {
    /// `None`: this machine lacks something that it needs.
    fn begin(case: &Case, job: &Job, files: &'a Files, network: Network<'a>) -> Result<Option<Self>> {
        let rank = case.fault.rank;
        let pid = *job.pids.get(rank as usize).context("no such rank")?;
        let mut slow = Self { faults: &files.faults, link: None, delayed: None, quota: None, stops: None };
        let part = case.fault.percent / (100.0 + case.fault.percent);
        match case.fault.kind {
            FaultKind::Link => {
                let Some(namespaces) = network.namespaces else { return Ok(None) };
                if !namespaces.limit(rank, Some(case.kilobits())) {
                    return Ok(None);
                }
                slow.link = Some((namespaces, rank));
            }
            FaultKind::Delay => {
                let Some(delayed) = network.delayed else { return Ok(None) };
                delayed.delay(case.delay());
                slow.delayed = Some(delayed);
            }
            FaultKind::Processor => {
                // So much of a processor is what a rank of the bed needs at least.
                let time = PERIOD.mul_f64(0.15 * (1.0 - part));
                slow.quota = Cgroup::limit(pid, time, PERIOD);
                if slow.quota.is_none() {
                    return Ok(None);
                }
            }
            FaultKind::Stopped => {
                let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process")?;
                let ends: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
                let stopped = STOPS_EVERY.mul_f64(part);
                let stops = thread::spawn(move || stop_again_and_again(pid, stopped, ends));
                slow.stops = Some((ends, stops));
            }
            _ => {
                // The bed reads it at any time: it must be there as a whole.
                let whole = files.faults.with_extension("new");
                fs::write(&whole, case.lines())?;
                fs::rename(&whole, &files.faults)?;
            }
        }
        Ok(Some(slow))
    }
}

fn stop_again_and_again(pid: Pid, stopped: Duration, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        // A process that is gone cannot be stopped, and nothing is left to do.
        let _ = kill_process(pid, Signal::STOP);
        thread::sleep(stopped);
        let _ = kill_process(pid, Signal::CONT);
        thread::sleep(STOPS_EVERY.saturating_sub(stopped));
    }
}

impl Drop for Slow<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.faults);
        if let Some((namespaces, rank)) = self.link {
            namespaces.limit(rank, None);
        }
        if let Some(delayed) = self.delayed {
            delayed.delay(Duration::ZERO);
        }
        if let Some((ends, stops)) = self.stops.take() {
            ends.store(true, Ordering::Relaxed);
            let _ = stops.join();
        }
    }
}

/// Mean time of an iteration between two moments, in milliseconds, over all ranks' GPUs.
fn iteration(log: &Path, ranks: u32, from: Duration, until: Duration) -> Result<f64> {
    let mut means = Vec::new();
    for rank in 0..ranks {
        let path = format!("{}.rank{rank}", log.display());
        let text = fs::read_to_string(&path).with_context(|| format!("reading `{path}`"))?;
        let begins = text.lines().filter_map(|line| line.parse().ok().map(Duration::from_nanos));
        let begins: Vec<Duration> = begins.filter(|at| (from..until).contains(at)).collect();
        if let [first, .., last] = begins[..] {
            let iterations = u32::try_from(begins.len() - 1)?;
            means.push(1e3 * last.saturating_sub(first).as_secs_f64() / f64::from(iterations));
        }
    }
    if means.is_empty() {
        bail!("the job did not go on");
    }
    Ok(means.iter().sum::<f64>() / f64::from(u32::try_from(means.len())?))
}
