//! One job of a kind, and dumps of it.

use std::{
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};

use super::kind::{Given, Kind, Over, Then};
use crate::harness::{cgroup::Cgroup, dumper::Dump, job::Shape, programs, world::World};

/// The GPUs of a job have stood still for so long when it has come to rest. Between two operations of a rank that gets no
/// processor it is less.
const REST: Duration = Duration::from_millis(1500);
/// What has no GPU that moves, as nothing was launched, has come to rest by then.
const AT_LEAST: Duration = Duration::from_secs(3);
/// A job that has not come to rest by then never does.
const AT_MOST: Duration = Duration::from_secs(300);

/// What the emulated GPUs do, as the bed writes it down and the NVML double tells.
#[derive(Clone, Debug)]
pub struct GpuStates {
    file: PathBuf,
    double: PathBuf,
}

impl GpuStates {
    /// Of a job that was started with `--gpu-states {}/gpus`; `None` without the double.
    pub fn of(job: &World) -> Option<Self> {
        Some(Self { file: job.path("gpus"), double: programs::nvml_double()? })
    }

    /// Environment of a program that is to ask the double.
    pub fn variables(&self) -> [(String, String); 2] {
        [("NCCLFLOW_NVML", &self.double), ("NVML_DOUBLE_STATES", &self.file)]
            .map(|(name, path)| (name.to_owned(), path.display().to_string()))
    }

    /// Waits until they stand still. Returns the time since 1970 at which they did first.
    fn rest(&self, kind: &Kind) -> Result<Duration> {
        let begun = Instant::now();
        let (mut last, mut since) = (Vec::new(), begun);
        loop {
            let now = fs::read(&self.file).context("reading what the GPUs do")?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
            let rests = kind.moves || since.elapsed() >= REST;
            if rests && begun.elapsed() >= AT_LEAST {
                let stood = since.elapsed();
                return Ok(SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default()
                    .saturating_sub(stood));
            }
            if begun.elapsed() > AT_MOST {
                anyhow::bail!("{}: the job does not come to rest", kind.name);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A job of a kind.
#[derive(Debug)]
pub struct Trial {
    /// Ends first: a frozen process does not end.
    _cgroup: Option<Cgroup>,
    pub kind: &'static Kind,
    pub job: World,
    /// Environment of its dumps.
    pub variables: Vec<(String, String)>,
    gpus: GpuStates,
    /// Children that the ranks had before anything was done to them.
    children: Vec<u32>,
}

impl Trial {
    /// Starts it on an official library and does to it what its kind is made of; `None` if the machine lacks something.
    pub fn start(kind: &'static Kind, version: &str) -> Result<Option<Self>> {
        Ok(Self::start_beside(kind, version, |_, _| Ok(()))?.map(|(trial, ())| trial))
    }

    /// The same, and starts something beside the job before anything is done to it.
    pub fn start_beside<T>(
        kind: &'static Kind,
        version: &str,
        beside: impl FnOnce(&World, &GpuStates) -> Result<T>,
    ) -> Result<Option<(Self, T)>> {
        let Some(job) = start(kind.over, kind.shape, version, kind.workload)? else { return Ok(None) };
        let Some(gpus) = GpuStates::of(&job) else { return Ok(None) };
        let beside = beside(&job, &gpus)?;
        let children = job.bed.ready.pids.iter().flat_map(|pid| children_of(*pid)).collect();
        let mut cgroup = None;
        match kind.then {
            Then::Nothing => {}
            Then::Touch(name) => {
                World::work();
                job.touch(name);
            }
            Then::Signal(rank, signal) => {
                World::work();
                job.signal(rank, signal)?;
            }
            Then::SignalAtRest(rank, signal) => {
                gpus.rest(kind)?;
                job.signal(rank, signal)?;
            }
            Then::Freeze(rank) | Then::Starve(rank) => {
                World::work();
                let pid = job.bed.ready.pids[rank];
                let held = if matches!(kind.then, Then::Freeze(_)) {
                    Cgroup::freeze(pid)
                } else {
                    Cgroup::starve(pid)
                };
                let Some(held) = held else { return Ok(None) };
                cgroup = Some(held);
            }
        }
        let variables = gpus.variables().to_vec();
        Ok(Some((Self { _cgroup: cgroup, kind, job, variables, gpus, children }, beside)))
    }

    /// Waits until its GPUs stand still, as the bed sees them. Returns the time since 1970 at which they did first.
    pub fn settle(&self) -> Result<Duration> {
        self.gpus.rest(self.kind)
    }

    /// Dumps the processes that this kind gives.
    pub fn dump(&self, arguments: &[&str]) -> Result<Dump> {
        let pids = self.job.bed.ready.pids.iter().enumerate();
        let given = pids.filter(|(rank, _)| self.kind.given != Given::Without(*rank));
        let children = self.children.iter().filter(|_| self.kind.given == Given::WithChildren);
        let pids: Vec<String> = given.map(|(_, pid)| pid).chain(children).map(u32::to_string).collect();
        let variables: Vec<(&str, &str)> =
            self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Dump::take_answered(&self.job.ncclflow, &pids.join(","), arguments, &variables)
    }
}

/// Children of a process, by the kernel's list (CONFIG_PROC_CHILDREN).
fn children_of(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Starts a job whose GPUs' states are written down.
pub fn start(over: Over, shape: Shape, version: &str, workload: &str) -> Result<Option<World>> {
    World::going(version, shape, &format!("{} {workload}", over.words()))
}
