//! The tracer is killed, again and again, at any moment of a running job.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use ncclflow_e2e::{
    harness::{
        bed::Bed,
        kernel_objects,
        memory::{self, BREAKPOINT},
    },
    truth::call_log,
};
use rustix::process::Signal;
use serde::Deserialize;
use test_support::damage::Random;

use super::{
    World,
    check::Checks,
    recording,
    run::wait_for_none,
    tracer::{Tracer, is_alone, still_there},
};

/// The latest moment after the start at which it is killed, in milliseconds: some while it comes up, most while it
/// records.
const LATEST: usize = 3500;
/// A block is closed after a second, and what comes out of the kernel is fetched every 50 ms. The rest is for the disk.
/// What the tracer waits for a processor comes to it: it is measured.
const LOST: Duration = Duration::from_millis(1500);
/// Of a round; in one in which the tracer waited longer for processors, a job can have called too late to be judged by.
const STARVED: Duration = Duration::from_millis(500);
const PROBED: &str = "ncclLaunchKernelAfter_NoCuda";

/// What was found to be wrong, by round.
#[derive(Debug, Default)]
struct Found {
    objects: usize,
    processes: usize,
    breakpoints: usize,
    /// Recordings that a reader refuses or calls damaged, or that say they were whole.
    unreadable: Vec<String>,
    /// Recordings that lack more than the last second.
    short: Vec<String>,
    armed: u64,
    records: u64,
    /// Recordings that must have calls that the job has logged.
    judged: u64,
    /// Rounds in which the tracer waited for processors that others had.
    starved: u64,
}

pub(crate) fn run(world: &World, kills: u64) -> Result<Checks> {
    let folder = tempfile::Builder::new().prefix("ncclflow-kills-").tempdir()?;
    let library = folder.path().join("libnccl.so.2");
    fs::copy(&world.steady, &library)?;
    let probed = memory::function_addresses(&world.ncclflow, &library, &[PROBED])?;
    let jobs = Jobs::default();
    let is_over = Arc::new(AtomicBool::new(false));
    let mut random = Random(world.seed);
    let mut found = Found::default();
    thread::scope(|scope| -> Result<()> {
        scope.spawn(|| jobs.run(world, &library, folder.path(), &is_over));
        let done = (0..kills).try_for_each(|round| {
            let output = folder.path().join(format!("out-{round}"));
            let after = Duration::from_millis(random.below(LATEST) as u64);
            let checked = one(world, &output, &folder.path().join("said"), after, round, &mut found, &jobs);
            let breakpoints = wait_for_none(|| {
                let pids = jobs.pids();
                let bytes = pids.iter().filter_map(|pid| memory::first_bytes(*pid, &library, &probed).ok());
                Ok(bytes.filter(|bytes| bytes.first() == Some(&BREAKPOINT)).count())
            })?;
            // Another one has probes of its own on the same file.
            if breakpoints > 0 && is_alone(&[]) {
                found.breakpoints += breakpoints;
            }
            let _ = fs::remove_dir_all(&output);
            checked.with_context(|| format!("round {round}"))
        });
        is_over.store(true, Ordering::Relaxed);
        done
    })?;
    let mut checks = Checks::default();
    checks.add("kills", kills, "≥ 1", kills > 0);
    checks.add("of these while it recorded", found.armed, "≥ 1", found.armed > 0);
    let judged = "of these with calls that must be there";
    if found.judged * 10 < kills && found.starved * 2 > found.armed {
        checks.unknown(judged, found.judged, format!("in {} it waited for processors", found.starved));
    } else {
        checks.add(judged, found.judged, "≥ 1 of 10", found.judged * 10 >= kills);
    }
    checks.tell("of these in which it waited for processors", found.starved);
    checks.add("records that were kept", found.records, "≥ 1", found.records > 0);
    checks.add("programs and links left", found.objects, "0", found.objects == 0);
    checks.add("probes left in processes", found.breakpoints, "0", found.breakpoints == 0);
    checks.add("processes left", found.processes, "0", found.processes == 0);
    let first = |list: &[String]| list.first().cloned().unwrap_or_default();
    let (unreadable, short) = (&found.unreadable, &found.short);
    checks.add(
        "recordings that are not whole blocks",
        format!("{} {}", unreadable.len(), first(unreadable)),
        "0",
        unreadable.is_empty(),
    );
    checks.add(
        "recordings that lack more than the last second",
        format!("{} {}", short.len(), first(short)),
        "0",
        short.is_empty(),
    );
    let (right, failed) = jobs.results();
    checks.add("jobs with right data", right, "≥ 1", right > 0);
    checks.add("jobs that failed", format!("{} {}", failed.len(), first(&failed)), "0", failed.is_empty());
    Ok(checks)
}

fn one(
    world: &World,
    output: &std::path::Path,
    said: &std::path::Path,
    after: Duration,
    round: u64,
    found: &mut Found,
    jobs: &Jobs,
) -> Result<()> {
    let mut tracer = Tracer::start(&world.ncclflow, output, said, None)?;
    // Every fourth is killed while it comes up.
    let since_armed = if round % 4 == 3 {
        None
    } else {
        tracer.armed()?;
        Some((Instant::now(), tracer.starved()))
    };
    thread::sleep(after);
    // What it has now; what it makes between this look and its end, the breakpoints show.
    let (objects, family) = (kernel_objects::of_process(tracer.pid()).unwrap_or_default(), tracer.family());
    let recorded =
        since_armed.map(|(since, starved)| (since.elapsed(), tracer.starved().saturating_sub(starved)));
    let killed_ns = call_log::now_ns();
    tracer.signal(Signal::KILL)?;
    tracer.wait()?;
    found.objects +=
        wait_for_none(|| objects.still_there().map(|left| left.programs.len() + left.links.len()))?;
    found.processes += still_there(&family).len();
    let Some((recorded, starved)) = recorded else { return Ok(()) };
    found.armed += 1;
    found.starved += u64::from(starved > STARVED);
    match recording::read(output) {
        Ok(contents) => {
            let damage = contents.damage;
            found.records += contents.records;
            if contents.has_end
                || damage.blocks + damage.unknown + damage.removed + damage.missing_segments > 0
            {
                let what = format!("round {round}: {damage:?}, an end: {}", contents.has_end);
                found.unreadable.push(what);
            }
            let since = killed_ns.saturating_sub(nanoseconds(recorded));
            let until = killed_ns.saturating_sub(nanoseconds(LOST + starved));
            // The last call, by the job's own log, that the recording must have.
            if let Some(called) = jobs.last_call(since, until) {
                found.judged += 1;
                if contents.last_ns < called {
                    let missing = Duration::from_nanos(killed_ns.saturating_sub(contents.last_ns));
                    let what = format!(
                        "round {round}: the last {missing:?} of {recorded:?}, {starved:?} of it without a processor"
                    );
                    found.short.push(what);
                }
            }
        }
        Err(error) => found.unreadable.push(format!("round {round}: {error:#}")),
    }
    Ok(())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A job after the other, so that one always runs.
#[derive(Debug, Default)]
struct Jobs(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pids: Vec<u32>,
    /// Folder of the latest job.
    place: PathBuf,
    right: u64,
    failed: Vec<String>,
}

impl Jobs {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn pids(&self) -> Vec<u32> {
        self.with(|state| state.pids.clone())
    }

    /// When the latest job has last called between these moments, by its own log.
    fn last_call(&self, since_ns: u64, until_ns: u64) -> Option<u64> {
        #[derive(Deserialize)]
        struct Call {
            function: String,
            begin_ns: u64,
        }
        let place = self.with(|state| state.place.clone());
        let logs = fs::read_dir(place).ok()?.flatten();
        let logs = logs.filter(|entry| entry.file_name().to_string_lossy().starts_with("calls."));
        let texts = logs.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        let last = |text: String| {
            let calls = text.lines().filter_map(|line| serde_json::from_str::<Call>(line).ok());
            let calls = calls.filter(|call| call.function == "ncclAllReduce");
            calls.map(|call| call.begin_ns).filter(|at| (since_ns..until_ns).contains(at)).max()
        };
        texts.filter_map(last).max()
    }

    fn results(&self) -> (u64, Vec<String>) {
        self.with(|state| (state.right, state.failed.clone()))
    }

    fn run(&self, world: &World, library: &std::path::Path, folder: &std::path::Path, is_over: &AtomicBool) {
        let mut number = 0;
        while !is_over.load(Ordering::Relaxed) {
            number += 1;
            let done = self.one(world, library, &folder.join(format!("job-{number}")));
            self.with(|state| match done {
                Ok(()) => state.right += 1,
                Err(error) => state.failed.push(format!("job {number}: {error:#}")),
            });
        }
    }

    fn one(&self, world: &World, library: &std::path::Path, place: &std::path::Path) -> Result<()> {
        fs::create_dir_all(place)?;
        self.with(|state| state.place = place.to_path_buf());
        let log = place.join("calls").display().to_string();
        let arguments = [
            "--call-log",
            &log,
            "--mode",
            "processes",
            "--iters",
            "1500",
            "--interval-ms",
            "10",
            "--bytes",
            "4096",
            // A machine that others use too is no fault of the tracer's; data is compared all the same.
            "--timeout",
            "1800",
            "--channels",
            "1",
            "--sync",
        ];
        let mut bed = Bed::start(&world.bed, library, place, &arguments)?;
        self.with(|state| state.pids.clone_from(&bed.ready.pids));
        bed.go()?;
        let finished = bed.finish();
        self.with(|state| state.pids.clear());
        let (status, summary) = finished?;
        anyhow::ensure!(summary.ok && status.success(), "{status}: {summary:?}");
        Ok(())
    }
}
