//! The tracer is killed, again and again, at any moment of a running job.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use ncclflow_e2e::{
    harness::{
        bed::Bed,
        kernel_objects,
        memory::{self, BREAKPOINT},
        world::CALL_LOG,
    },
    truth::call_log,
};
use rustix::process::Signal;
use serde::Deserialize;
use test_support::{Heartbeat, damage::Random, eventually};

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
/// In every fourth round it is killed so late that calls must be there.
const LATE: usize = 2500;
/// Until a job calls that the tracer follows: one takes some seconds to come up after the other.
const PATIENCE: Duration = Duration::from_mins(2);
/// A block is closed after a second, and what comes out of the kernel is fetched every 50 ms. The rest is for the disk.
/// What the tracer waits for a processor, and for how long the machine stands, comes to it: it is measured.
const LOST: Duration = Duration::from_millis(1500);
/// Of a round; in one in which it was longer, a job can have called too late to be judged by.
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
    /// Of the rounds that may be judged, those in which the tracer waited for processors that others had.
    starved: u64,
}

pub(crate) fn run(world: &World, kills: u64) -> Result<Checks> {
    let folder = tempfile::Builder::new().prefix("ncclflow-kills-").tempdir()?;
    let library = folder.path().join("libnccl.so.2");
    fs::copy(&world.steady, &library)?;
    let probed = memory::function_addresses(&world.ncclflow, &library, &[PROBED])?;
    let jobs = Jobs::default();
    let is_over = Arc::new(AtomicBool::new(false));
    let heartbeat = Heartbeat::start();
    let mut random = Random(world.seed);
    let mut found = Found::default();
    thread::scope(|scope| -> Result<()> {
        scope.spawn(|| jobs.run(world, &library, folder.path(), &is_over));
        let done = (0..kills).try_for_each(|number| {
            let output = folder.path().join(format!("out-{number}"));
            let after =
                if number % 4 == 0 { LATE + random.below(LATEST - LATE) } else { random.below(LATEST) };
            let after = Duration::from_millis(after as u64);
            let said = folder.path().join("said");
            let round = Round { number, output: &output, said: &said, after };
            let checked = one(world, &round, &mut found, &jobs, &heartbeat);
            found.breakpoints += wait_for_none(|| {
                let pids = jobs.pids();
                let bytes = pids.iter().filter_map(|pid| memory::first_bytes(*pid, &library, &probed).ok());
                let count = bytes.filter(|bytes| bytes.first() == Some(&BREAKPOINT)).count();
                // Another one has probes of its own on the same file.
                Ok(if count > 0 && is_alone(&[]) { count } else { 0 })
            })?;
            let _ = fs::remove_dir_all(&output);
            checked.with_context(|| format!("round {number}"))
        });
        is_over.store(true, Ordering::Relaxed);
        done
    })?;
    let mut checks = Checks::default();
    checks.add("kills", kills, "≥ 1", kills > 0);
    checks.add("of these while it recorded", found.armed, "≥ 1", found.armed > 0);
    let judged = "of these with calls that must be there";
    // Every fourth is judged, unless it waited.
    if found.judged * 10 < kills && found.starved > 0 {
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

/// One kill: into which folder the tracer records, and how long it is left alone before.
struct Round<'a> {
    number: u64,
    output: &'a Path,
    said: &'a Path,
    after: Duration,
}

impl Round<'_> {
    /// Every fourth is killed while it comes up.
    fn comes_up(&self) -> bool {
        self.number % 4 == 3
    }

    /// Every second is judged by the job's calls. It is stopped before: then it is known how long its threads have waited for
    /// processors. But a thread is stopped between two system calls, and so the others are killed without that, in the midst
    /// of a write, too.
    fn is_judged(&self) -> bool {
        self.number.is_multiple_of(2)
    }
}

fn one(
    world: &World,
    round: &Round<'_>,
    found: &mut Found,
    jobs: &Jobs,
    heartbeat: &Heartbeat,
) -> Result<()> {
    let Round { number, output, said, after } = *round;
    let mut tracer = Tracer::start(&world.ncclflow, output, said, None)?;
    if !round.comes_up() {
        tracer.armed()?;
    }
    let missed = |tracer: &Tracer| tracer.starved() + heartbeat.late();
    let followed = if round.is_judged() { Some(jobs.follow(&tracer, missed)?) } else { None };
    thread::sleep(after);
    // What it has now; what it makes between this look and its end, the breakpoints show.
    let (objects, family) = (kernel_objects::of_process(tracer.pid()).unwrap_or_default(), tracer.family());
    let killed_ns = call_log::now_ns();
    let followed = match followed {
        Some(followed) => {
            tracer.stop()?;
            Some((missed(&tracer).saturating_sub(followed.missed), followed))
        }
        None => None,
    };
    tracer.signal(Signal::KILL)?;
    tracer.wait()?;
    found.objects +=
        wait_for_none(|| objects.still_there().map(|left| left.programs.len() + left.links.len()))?;
    found.processes += still_there(&family).len();
    if round.comes_up() {
        return Ok(());
    }
    found.armed += 1;
    let contents = match recording::read(output) {
        Ok(contents) => contents,
        Err(error) => {
            found.unreadable.push(format!("round {number}: {error:#}"));
            return Ok(());
        }
    };
    let damage = contents.damage;
    found.records += contents.records;
    if contents.has_end || damage.blocks + damage.unknown + damage.removed + damage.missing_segments > 0 {
        found.unreadable.push(format!("round {number}: {damage:?}, an end: {}", contents.has_end));
    }
    let Some((missed, followed)) = followed else { return Ok(()) };
    found.starved += u64::from(missed > STARVED);
    let until_ns = killed_ns.saturating_sub(nanoseconds(LOST + missed));
    // The last call, by the job's own log, that the recording must have.
    if let Some(called) = last_call(&followed.place, followed.since_ns, until_ns) {
        found.judged += 1;
        if contents.last_ns < called {
            let missing = Duration::from_nanos(killed_ns.saturating_sub(contents.last_ns));
            found.short.push(format!("round {number}: the last {missing:?}, and it missed {missed:?}"));
        }
    }
    Ok(())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// When the job in this folder has last called between these moments, by its own log.
fn last_call(place: &Path, since_ns: u64, until_ns: u64) -> Option<u64> {
    #[derive(Deserialize)]
    struct Call {
        function: String,
        begin_ns: u64,
    }
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

/// A job that calls while the tracer follows it.
struct Followed {
    /// Its folder.
    place: PathBuf,
    /// Since when it is followed at least.
    since_ns: u64,
    /// How late the tracer was until then.
    missed: Duration,
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

    /// Waits until a job calls that the tracer follows. `missed`: how late the tracer was until now.
    fn follow(&self, tracer: &Tracer, missed: impl Fn(&Tracer) -> Duration) -> Result<Followed> {
        let mut followed: Option<Followed> = None;
        let calls = eventually(PATIENCE, || {
            let (place, pids) = self.with(|state| (state.place.clone(), state.pids.clone()));
            let is_new = followed.as_ref().is_none_or(|followed| followed.place != place);
            if is_new && !pids.is_empty() && tracer.follows(&pids) {
                let (missed, since_ns) = (missed(tracer), call_log::now_ns());
                followed = Some(Followed { place, since_ns, missed });
            }
            followed.as_ref().is_some_and(|Followed { place, since_ns, .. }| {
                last_call(place, *since_ns, u64::MAX).is_some()
            })
        });
        followed.filter(|_| calls).context("no job calls that the tracer follows")
    }

    fn results(&self) -> (u64, Vec<String>) {
        self.with(|state| (state.right, state.failed.clone()))
    }

    fn run(&self, world: &World, library: &Path, folder: &Path, is_over: &AtomicBool) {
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

    fn one(&self, world: &World, library: &Path, place: &Path) -> Result<()> {
        self.with(|state| state.place = place.to_path_buf());
        // A machine that others use too is no fault of the tracer's; data is compared all the same.
        let fixed =
            "--mode processes --iters 1500 --interval-ms 10 --bytes 4096 --timeout 1800 --channels 1 --sync";
        let mut bed = Bed::of_words(&world.bed, library, place, &format!("{fixed} {CALL_LOG}"))?;
        self.with(|state| state.pids.clone_from(&bed.ready.pids));
        bed.go()?;
        let finished = bed.finish();
        self.with(|state| state.pids.clear());
        let (status, summary) = finished?;
        anyhow::ensure!(summary.ok && status.success(), "{status}: {summary:?}");
        Ok(())
    }
}
