//! The soak: phases of everything at once, with a pause after each in which the tracer is looked at.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use ::recording::format::Damage;
use anyhow::{Context as _, Result};
use aya::sys::{Stats, enable_stats};
use ncclflow_e2e::harness::{
    disk::Disk,
    kernel_objects,
    memory::{self, BREAKPOINT},
    node::Killed,
    run_counts::RunCounts,
};
use rustix::process::Signal;
use serde_json::Value;
use test_support::{damage::Random, eventually};

use super::{
    World,
    check::Checks,
    clients::{Clients, Served},
    files::Files,
    idle::Idle,
    jobs::Jobs,
    ledger::{Ledger, Slot},
    recording,
    tenant::{Order, Trick},
    tenants::Tenants,
    tracer::{FREED, Tracer, is_alone, still_there},
    watcher::Watcher,
};

/// Of the disk that the recording is on.
const MEGABYTES: u32 = 256;
/// After a phase, until the tracer is looked at: what has ended is forgotten after a second.
const SETTLE: Duration = Duration::from_secs(5);
/// Until it has let go of library files that are gone, which it looks for once in five seconds or so.
const LET_GO: Duration = Duration::from_secs(30);
/// One phase lasts so long at most.
const PHASE: Duration = Duration::from_mins(5);
/// Phases at least: one to warm up, and two that are compared.
const PHASES: u32 = 3;
/// A function that has a probe.
const PROBED: &str = "ncclLaunchKernelAfter_NoCuda";
/// Of the memory and descriptors after the warm-up, in percent.
const FLAT: u64 = 5;
/// Memory of a library file that came after the warm-up, in bytes: the recording tells of each, up to 512.
const LIBRARY: u64 = 8 << 10;
/// What an allocator can keep or give back at any time, in bytes.
const GRAIN: u64 = 2 << 20;
/// The tracer in a pause.
#[derive(Clone, Copy, Debug)]
struct Sample {
    resident: u64,
    /// Of these bytes, its own.
    anonymous: u64,
    descriptors: usize,
    /// Processes of others that it follows: each takes descriptors.
    others: usize,
    libraries: u64,
}

impl Sample {
    /// So many it may have in the end, if it had these after the warm-up.
    fn most_descriptors(self) -> usize {
        self.descriptors + (self.descriptors as u64 * FLAT / 100) as usize + 2
    }
}

/// What is done to the tracer and its disk.
#[derive(Debug, Default)]
struct Done {
    stopped: u64,
    filled: u64,
}

pub(crate) fn run(world: &World, time: Duration) -> Result<Checks> {
    let folder = tempfile::Builder::new().prefix("ncclflow-soak-").tempdir()?;
    let disk = Disk::mount(&folder.path().join("disk"), MEGABYTES)?;
    let steady = folder.path().join("steady/libnccl.so.2");
    fs::create_dir_all(steady.parent().context("it is in no folder")?)?;
    fs::copy(&world.steady, &steady)?;
    let ledger = Ledger::create(&folder.path().join("ledger"))?;
    let probed = memory::function_addresses(&world.ncclflow, &steady, &[PROBED])?;

    // The kernel counts from before the first program is loaded.
    let counting = enable_stats(Stats::RunTime).context("asking the kernel to count")?;
    let address = free_address()?;
    let mut tracer =
        Tracer::start(&world.ncclflow, &disk.path().join("out"), &folder.path().join("said"), Some(address))?;
    tracer.armed()?;
    // The library is probed before anybody calls.
    let holder = holder(&steady)?;
    tracer.traces(holder.0.id())?;
    let watch_address = free_address()?;
    let watcher = Watcher::start(&world.ncclflow, folder.path(), &disk.path().join("dumps"), watch_address)?;
    let has_breakpoint = |pid| {
        memory::first_bytes(pid, &steady, &probed).is_ok_and(|bytes| bytes.first() == Some(&BREAKPOINT))
    };
    let mut checks = Checks::default();
    checks.add(
        "probe in a process that stays",
        has_breakpoint(holder.0.id()),
        "true",
        has_breakpoint(holder.0.id()),
    );

    let quiet = if time > Duration::from_mins(10) { Duration::from_mins(1) } else { Duration::from_secs(20) };
    let phases = u32::try_from(time.as_secs() / PHASE.as_secs()).unwrap_or(u32::MAX).max(PHASES);
    let phase = time.saturating_sub(quiet + SETTLE * phases) / phases;
    let mut tenants = Tenants::new(steady.clone(), ledger.clone(), world.seed);
    let mut files = Files::new(folder.path().join("files"), world.restless.clone(), world.seed + 1);
    let (mut jobs, mut served, mut done) = (Jobs::default(), Served::default(), Done::default());
    let mut random = Random(world.seed + 2);
    let mut samples = Vec::new();
    let begun = Instant::now();
    for number in 1..=phases {
        let until = Instant::now() + phase;
        thread::scope(|scope| -> Result<()> {
            let clients = [address, watch_address].map(Clients::start);
            scope.spawn(|| files.run(until));
            scope.spawn(|| jobs.run(&world.bed, &steady, &folder.path().join("jobs"), &ledger, until));
            let acted = act(&mut tenants, (&tracer, &watcher), &disk, &mut random, &mut done, until);
            for clients in clients {
                add(&mut served, clients.end());
            }
            acted
        })?;
        tenants.wait()?;
        thread::sleep(SETTLE);
        let others = tracer.others(holder.0.id());
        let (resident, anonymous) = (tracer.resident(), tracer.anonymous());
        let (descriptors, libraries) = (tracer.descriptors(), tracer.libraries());
        let sample = Sample { resident, anonymous, descriptors, others, libraries };
        samples.push(sample);
        println!(
            "phase {number} of {phases}: {} processes, {} jobs, {} files, {} scrapes; the tracer has {:.1} MiB, {:.1} its own, and {} descriptors",
            tenants.fates.started,
            jobs.right,
            files.changed.done.values().sum::<u64>(),
            served.scrapes,
            mebibytes(sample.resident),
            mebibytes(sample.anonymous),
            sample.descriptors
        );
    }
    let busy = begun.elapsed();
    if let (Some(warm), Some(last)) = (warm(&samples), samples.last_mut()) {
        let _ = eventually(LET_GO, || {
            last.descriptors = tracer.descriptors();
            last.descriptors <= warm.most_descriptors()
        });
    }

    watcher.finish(&jobs.pids, &mut checks)?;
    // Nothing new comes.
    let idle = Idle::of(&tracer, quiet);

    let (family, program) = (tracer.family(), tracer.program_size());
    let objects = kernel_objects::of_process(tracer.pid())?;
    let runs = RunCounts::of_process(tracer.pid())?;
    tracer.signal(Signal::INT)?;
    let status = tracer.wait()?;
    let total = runs.total()?;
    drop((runs, counting));
    let session = tracer.session().context("there is no session.json")?;

    accounts(&mut checks, &session, tracer.output(), &ledger, &steady, total)?;
    let fates = &tenants.fates;
    let per_minute = fates.started * 60 / busy.as_secs().max(1);
    checks.add("processes a minute", per_minute, "≥ 100", per_minute >= 100);
    checks.tell("of these stopped, killed", format!("{}, {}", fates.stopped, fates.killed));
    checks.add("processes with a wrong end", shown(&fates.failed), "0", fates.failed.is_empty());
    let wrong = ledger.get(Slot::Wrong);
    checks.add("calls with a wrong result", wrong, "0", wrong == 0);
    checks.add("jobs with right data", jobs.right, "≥ 1", jobs.right > 0);
    checks.add("jobs that failed", shown(&jobs.failed), "0", jobs.failed.is_empty());
    checks.tell("changes of files", format!("{:?}", files.changed.done));
    let failed = &files.changed.failed;
    checks.add("processes on them that failed", shown(failed), "0", failed.is_empty());
    checks.tell("clients that were rude", served.crowd);
    checks.add("scrapes", served.scrapes, "≥ 1", served.scrapes > 0);
    checks.add("scrapes that failed", shown(&served.refused), "0", served.refused.is_empty());
    checks.tell("slowest scrape", format!("{:?}", served.slowest));
    checks.tell("tracer stopped, disk filled", format!("{}, {}", done.stopped, done.filled));

    flat(&mut checks, &samples, program);
    idle.check(&mut checks);

    // 1 says that not all could be written.
    let is_expected = status.success() || (done.filled > 0 && status.code() == Some(1));
    checks.add("exit", status, "0, or 1 after a full disk", is_expected);
    let left = wait_for_none(|| objects.still_there().map(|left| left.programs.len() + left.links.len()))?;
    checks.add("programs and links left", left, "0", left == 0);
    let left = wait_for_none(|| Ok(usize::from(has_breakpoint(holder.0.id()))))?;
    if left > 0 && !is_alone(&family) {
        checks.unknown("probes left", left, "another ncclflow runs on this machine");
    } else {
        checks.add("probes left", left, "0", left == 0);
    }
    let left = still_there(&family);
    checks.add("processes left", left.len(), "0", left.is_empty());
    if !tracer.said().is_empty() {
        println!("ncclflow said:\n{}", tracer.said().trim());
    }
    Ok(checks)
}

/// Tenants come and go, the tracer is stopped and goes on, the disk fills and empties, until it is time.
fn act(
    tenants: &mut Tenants,
    (tracer, watcher): (&Tracer, &Watcher),
    disk: &Disk,
    random: &mut Random,
    done: &mut Done,
    until: Instant,
) -> Result<()> {
    let mut in_seconds = |least: u64, more: usize| {
        Instant::now() + Duration::from_millis(least * 1000 + random.below(more * 1000) as u64)
    };
    let (mut stop, mut go_on) = (in_seconds(5, 10), None);
    let (mut stop_watch, mut watch_on) = (in_seconds(5, 10), None);
    let (mut fill, mut empty) = (in_seconds(8, 10), None);
    while Instant::now() < until {
        tenants.step()?;
        let now = Instant::now();
        if now >= stop {
            tracer.signal(Signal::STOP)?;
            (stop, go_on, done.stopped) = (in_seconds(10, 15), Some(in_seconds(0, 2)), done.stopped + 1);
        }
        if go_on.take_if(|at| *at <= now).is_some() {
            tracer.signal(Signal::CONT)?;
        }
        if now >= stop_watch {
            watcher.signal(Signal::STOP)?;
            (stop_watch, watch_on) = (in_seconds(20, 20), Some(in_seconds(0, 2)));
        }
        if watch_on.take_if(|at| *at <= now).is_some() {
            watcher.signal(Signal::CONT)?;
        }
        if now >= fill {
            disk.fill()?;
            (fill, empty, done.filled) = (in_seconds(15, 15), Some(in_seconds(2, 3)), done.filled + 1);
        }
        if empty.take_if(|at| *at <= now).is_some() {
            disk.empty()?;
        }
        thread::sleep(Duration::from_millis(20));
    }
    tracer.signal(Signal::CONT)?;
    watcher.signal(Signal::CONT)?;
    if empty.is_some() {
        disk.empty()?;
    }
    Ok(())
}

/// Every hit is a record or a loss that is counted: by the program, by the kernel, by the tenants, by who reads the
/// recording.
fn accounts(
    checks: &mut Checks,
    session: &Value,
    output: &Path,
    ledger: &Ledger,
    steady: &Path,
    runs: u64,
) -> Result<()> {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let probes = || session["probes"].as_array().into_iter().flatten();
    let sum = |key: &str| probes().map(|probe| number(&probe[key])).sum::<u64>();
    // Parts are counted record by record; a walk is one run, of the probe itself.
    let hits: u64 =
        probes().filter(|probe| probe["part"].is_null()).map(|probe| number(&probe["hits"])).sum();
    checks.add("hits, as the kernel counts runs", format!("{hits} and {runs}"), "equal", hits == runs);
    let unequal = probes().filter(|probe| {
        let of = |key: &str| number(&probe[key]);
        of("hits") != of("delivered") + of("lost") + of("dropped") + of("disarmed")
    });
    let unequal = unequal.count();
    checks.add("probes whose hits are not accounted for", unequal, "0", unequal == 0);
    let loss = &session["loss"];
    for key in ["records_unaccounted", "records_undecodable"] {
        let count = number(&loss[key]);
        checks.add(key, count, "0", count == 0);
    }
    if let Some(why) = session["first_undecodable"].as_str() {
        println!("the first record that is not understood: {why}");
    }
    let lost = sum("lost");
    checks.add(
        "records lost (and some are: buffers are small)",
        lost,
        "as counted",
        lost == number(&loss["records_lost"]),
    );

    let libraries = session["libraries"].as_array().into_iter().flatten();
    let ours = steady.display().to_string();
    let index = libraries.into_iter().position(|library| library["path"] == ours.as_str());
    let index = index.context("the library that stays is not in the report")?;
    let of_calls: u64 = probes()
        .filter(|probe| probe["library"] == index && probe["function"] == "ncclEnqueueCheck")
        .map(|probe| number(&probe["hits"]))
        .sum();
    let (begun, ended) = (ledger.get(Slot::Begun), ledger.get(Slot::Ended));
    checks.add(
        "calls, as tenants count them",
        format!("{ended} ≤ {of_calls} ≤ {begun}"),
        "holds, with many",
        ended <= of_calls && of_calls <= begun && ended > 1000,
    );

    let kept = &session["recording"];
    let contents = recording::read(output)?;
    let (delivered, not_recorded) = (sum("delivered"), number(&kept["lost"]));
    checks.add(
        "records read, and not recorded",
        format!("{} + {not_recorded}", contents.records),
        format!("= {delivered}"),
        contents.records + not_recorded == delivered && number(&kept["removed_records"]) == 0,
    );
    checks.add("the recording's end", contents.has_end, "true", contents.has_end);
    let damage = contents.damage;
    let is_whole = damage == Damage::default();
    checks.add("damage", format!("{} blocks, {} bytes", damage.blocks, damage.bytes), "none", is_whole);
    let state = session["state"].as_str().unwrap_or("none");
    // A disk was full at times, and the recording says so.
    checks.add("state", state, "complete or write_failed", matches!(state, "complete" | "write_failed"));
    if let Some(readers) = session.get("lost_readers") {
        checks.tell("readers lost", readers);
    }
    Ok(())
}

/// That after the warm-up.
fn warm(samples: &[Sample]) -> Option<Sample> {
    samples.get(samples.len() / 3).copied()
}

/// `program`: bytes of the tracer's file, whose pages come as they are used.
fn flat(checks: &mut Checks, samples: &[Sample], program: u64) {
    let (Some(warm), Some(last)) = (warm(samples), samples.last()) else { return };
    let libraries = last.libraries.saturating_sub(warm.libraries);
    let most = warm.anonymous + warm.anonymous * FLAT / 100 + GRAIN + LIBRARY * libraries;
    checks.add(
        "memory of its own after the warm-up, at the end (MiB)",
        format!("{:.1}, {:.1}", mebibytes(warm.anonymous), mebibytes(last.anonymous)),
        format!("≤ {:.1}", mebibytes(most)),
        last.anonymous <= most,
    );
    let of_files = last.resident - last.anonymous.min(last.resident);
    checks.add(
        "memory of files at the end (MiB)",
        format!("{:.1}", mebibytes(of_files)),
        format!("≤ {:.1}", mebibytes(program + GRAIN)),
        of_files <= program + GRAIN,
    );
    let most = warm.most_descriptors();
    let what = "descriptors after the warm-up, at the end";
    let found = format!("{}, {}", warm.descriptors, last.descriptors);
    if last.others > warm.others {
        checks.unknown(what, found, format!("{} processes of others use NCCL", last.others));
    } else {
        checks.add(what, found, format!("≤ {most}"), last.descriptors <= most);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a size for people")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// How many, and the first of them.
pub(crate) fn shown(failed: &[String]) -> String {
    match failed.first() {
        Some(first) => format!("{}, like: {first}", failed.len()),
        None => "0".to_owned(),
    }
}

/// What the kernel takes away, it takes away soon; on a busy machine later.
pub(crate) fn wait_for_none(count: impl Fn() -> Result<usize>) -> Result<usize> {
    let deadline = Instant::now() + FREED;
    loop {
        let left = count()?;
        if left == 0 || Instant::now() > deadline {
            return Ok(left);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn add(all: &mut Served, more: Served) {
    all.crowd += more.crowd;
    all.scrapes += more.scrapes;
    all.slowest = all.slowest.max(more.slowest);
    all.refused.extend(more.refused);
}

/// A process that has loaded the library and stays.
fn holder(library: &PathBuf) -> Result<Killed> {
    let hold = Duration::from_hours(24);
    let order = Order { trick: Trick::Plain, library, ledger: None, calls: 0, hold };
    let child: Child = order.command()?.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    Ok(Killed(child))
}

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
