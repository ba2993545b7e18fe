//! Dumps of jobs whose ranks compute, evaluate and write checkpoints for up to 30 s between their collectives, at any
//! moment: none of them is stuck.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use ncclflow_e2e::harness::{
    dumper::{Dump, DumpedCommunicator},
    hangs::{GpuStates, Over, start, summary},
    job::{Shape, VERSIONS},
    world::World,
};

use super::Kept;

/// What the jobs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Jobs {
    /// They compute, evaluate and write checkpoints for up to 30 s, while others wait.
    Phases,
    /// Two stages of two ranks: collectives within a stage, sends and receives alone between them, thousands of times a
    /// second. Nobody waits for anybody for long.
    Pipelines,
}

impl Jobs {
    fn workload(self) -> &'static str {
        match self {
            Self::Phases => {
                "--phases 30 --iters 1000000000 --bytes 262144 --ops allreduce,allgather --comms 2"
            }
            Self::Pipelines => {
                "--stages 2 --iters 1000000000 --bytes 4096 --ops allreduce,sendstage,sendstage"
            }
        }
    }

    /// Then another job takes its place; the bed gives its ranks some minutes more.
    fn age(self) -> Duration {
        match self {
            Self::Phases => Duration::from_mins(8),
            Self::Pipelines => Duration::from_mins(1),
        }
    }

    /// States that no dump may say.
    fn forbidden(self) -> &'static [&'static str] {
        match self {
            Self::Phases => &["stuck"],
            Self::Pipelines => &["stuck", "waiting"],
        }
    }
}

const RANKS: Shape = Shape { ranks: 4, processes: true, tree: false };
/// Dumps of one job that are made side by side.
const OF_ONE_JOB: usize = 2;

pub(super) fn run(jobs: Jobs, dumps: usize, at_once: usize, kept: &Kept) -> Result<bool> {
    let taken = AtomicUsize::new(0);
    let states: Mutex<BTreeMap<String, usize>> = Mutex::default();
    let results = thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once)
            .map(|number| {
                let (taken, states) = (&taken, &states);
                scope.spawn(move || -> Result<()> {
                    for turn in 0.. {
                        if taken.load(Ordering::Relaxed) >= dumps {
                            break;
                        }
                        one_job(jobs, number + turn, dumps, taken, states, kept)?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    for result in results {
        result.map_err(|_| anyhow::anyhow!("a thread has panicked"))??;
    }
    let states = states.into_inner().unwrap_or_else(PoisonError::into_inner);
    let all: usize = states.values().sum();
    for (state, count) in &states {
        println!("{state:<10} {count:>5}");
    }
    let wrong =
        jobs.forbidden().iter().map(|state| states.get(*state).copied().unwrap_or_default()).sum::<usize>();
    println!("{all} dumps of busy jobs; {wrong} are {} (none may be)", jobs.forbidden().join(" or "));
    Ok(wrong == 0 && all >= dumps)
}

fn one_job(
    jobs: Jobs,
    number: usize,
    dumps: usize,
    taken: &AtomicUsize,
    states: &Mutex<BTreeMap<String, usize>>,
    kept: &Kept,
) -> Result<()> {
    let version = VERSIONS[number % VERSIONS.len()];
    let over =
        if (number / VERSIONS.len() + number).is_multiple_of(2) { Over::SharedMemory } else { Over::Sockets };
    let sync = if number.is_multiple_of(3) { "" } else { "--sync" };
    let job = start(over, RANKS, version, &format!("{} {sync}", jobs.workload()))?;
    let job = job.context("something is missing; see above")?;
    let gpus = GpuStates::of(&job).context("something is missing; see above")?;
    println!("a job on {version} over {}; {} dumps so far", over.name(), taken.load(Ordering::Relaxed));
    let begun = Instant::now();
    let results = thread::scope(|scope| {
        let dumpers: Vec<_> = (0..OF_ONE_JOB)
            .map(|dumper| {
                let (job, gpus) = (&job, &gpus);
                scope.spawn(move || -> Result<()> {
                    // Not all at the same moment.
                    thread::sleep(Duration::from_millis(400 * dumper as u64));
                    while begun.elapsed() < jobs.age() && taken.fetch_add(1, Ordering::Relaxed) < dumps {
                        let dump = dump_of(job, gpus)?;
                        let worst = worst(&dump.communicators);
                        if jobs.forbidden().contains(&&*worst) {
                            let path = kept.keep(&format!("busy.{version}"), &dump)?;
                            println!("{version}: {}; {}", summary(&dump.communicators), path.display());
                        }
                        *states.lock().unwrap_or_else(PoisonError::into_inner).entry(worst).or_default() += 1;
                    }
                    Ok(())
                })
            })
            .collect();
        dumpers.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    for result in results {
        result.map_err(|_| anyhow::anyhow!("a thread has panicked"))??;
    }
    Ok(())
}

fn dump_of(job: &World, gpus: &GpuStates) -> Result<Dump> {
    let variables = gpus.variables();
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    Dump::take_with(&job.ncclflow, &job.bed.pid_list(), &[], &variables)
}

fn worst(communicators: &[DumpedCommunicator]) -> String {
    let states: Vec<&str> = communicators.iter().map(|one| one.verdict.state.as_str()).collect();
    let first = ["stuck", "waiting", "unknown", "healthy"].into_iter().find(|state| states.contains(state));
    first.unwrap_or("none").to_owned()
}
