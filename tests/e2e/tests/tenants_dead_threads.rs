//! A session of which a thread dies ends as failed, loudly: with what was lost counted, no probe left, and the
//! job as it was. systemd and Kubernetes are told of one that hangs.
//!
//! The faults are those of `NCCLFLOW_FAULT`, which a debug build has.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use ncclflow_e2e::harness::{bed::Bed, kernel_objects, programs, recorder::Recorder};
use serde_json::Value;
use test_support::{root, wait_until};

/// The rest is for a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);
const VERSION: &str = "2.27.5-cu12";
const JOB: [&str; 10] =
    ["--ranks", "2", "--iters", "800", "--bytes", "65536", "--ops", "allreduce", "--channels", "1"];

struct World {
    ncclflow: PathBuf,
    folder: tempfile::TempDir,
    bed: Bed,
}

/// A bed that waits. `None` if the machine lacks something.
fn world() -> Option<World> {
    let (ncclflow, bed, library) = (programs::ncclflow()?, programs::bed()?, programs::nccl(VERSION)?);
    if !root() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let bed = Bed::start(&bed, &library, folder.path(), &JOB).unwrap();
    Some(World { ncclflow, folder, bed })
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn sum(session: &Value, key: &str) -> u64 {
    session["probes"].as_array().unwrap().iter().map(|probe| number(&probe[key])).sum()
}

/// Records with this fault, of which the times count from when the job is let go, until the session ends by itself. Gives
/// what it said and its `session.json`.
fn fails(fault: &str, more: &[&str]) -> Option<(String, Value, World)> {
    let mut world = world()?;
    let World { ncclflow, folder, bed } = &mut world;
    let out = folder.path().join("out");
    // If it did not end by itself, it would end well, and that is no failure.
    let time = if fault.starts_with("files") { "2" } else { "60" };
    let arguments = [&["-d", time], more].concat();
    let gated = format!("{fault}:{}", folder.path().join("go").display());
    let recorder =
        Recorder::start_in(ncclflow, &bed.pid_list(), &out, &arguments, &[("NCCLFLOW_FAULT", &gated)])
            .unwrap();
    let made = kernel_objects::of_process(recorder.pid()).unwrap();
    assert!(!made.links.is_empty(), "it has probes");
    bed.go().unwrap();
    if let Some(address) = address(recorder.said()) {
        // It can be too late for that already.
        let _ = TcpStream::connect(address);
    }
    let begun = Instant::now();
    let (status, said) = recorder.finish().unwrap();
    assert_eq!(status.code(), Some(1), "{fault}: {said}");
    assert!(begun.elapsed() < Duration::from_secs(40), "{fault}: it ended by its time: {said}");
    assert!(said.contains("the session has failed"), "{fault}: {said}");
    // The probes go at once; the program that they ran the kernel frees a moment later.
    assert!(made.still_there().unwrap().links.is_empty(), "{fault}: probes are left");
    wait_until(&format!("{fault}: no program is left"), PATIENCE, || {
        made.still_there().unwrap() == kernel_objects::KernelObjects::default()
    });
    let (job, summary) = bed.finish().unwrap();
    assert!(job.success() && summary.ok, "{fault}: the job's results: {job} {summary:?} {said}");
    let session: Value = serde_json::from_slice(&fs::read(out.join("session.json")).unwrap()).unwrap();
    assert_eq!(session["state"], "failed", "{fault}: {session:#}");
    Some((said, session, world))
}

fn names_thread(session: &Value, thread: &str) -> bool {
    session["errors"].as_array().unwrap().iter().any(|error| error.as_str().unwrap().contains(thread))
}

/// Hits of an open session, as the kernel counted them, and what became of them.
fn assert_counted(session: &Value) {
    let hits = sum(session, "hits") - sum(session, "disarmed");
    let (delivered, lost, dropped) =
        (sum(session, "delivered"), sum(session, "lost"), sum(session, "dropped"));
    let unaccounted = number(&session["loss"]["records_unaccounted"]);
    assert!(
        hits.abs_diff(delivered + lost + dropped) <= unaccounted,
        "{hits} hits are not {delivered} delivered, {lost} lost, {dropped} dropped, {unaccounted} unaccounted for"
    );
}

#[test]
fn a_dead_keeper_ends_the_session_and_what_it_had_not_written_is_counted() {
    let Some((_, session, world)) = fails("keep:panic:3", &[]) else { return };
    assert!(names_thread(&session, "ncclflow-keep"), "{}", session["errors"]);
    assert_counted(&session);
    assert!(sum(&session, "delivered") > 0);
    let loss = &session["loss"];
    assert_eq!(number(&loss["records_unaccounted"]), 0, "{loss}");
    let recorded = number(&session["recording"]["records"]);
    assert_eq!(sum(&session, "delivered"), recorded + number(&loss["records_not_recorded"]), "{loss}");
    assert!(number(&loss["records_not_recorded"]) + number(&loss["records_dropped"]) > 0, "{loss}");
    // What is there is whole blocks.
    let exported = Command::new(&world.ncclflow)
        .arg("export")
        .arg(world.folder.path().join("out"))
        .args(["-f", "jsonl", "-o"])
        .arg(world.folder.path().join("again"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&exported.stderr);
    assert!(exported.status.success() || exported.status.code() == Some(3), "{said}");
}

#[test]
fn a_dead_drain_ends_the_session_and_what_it_left_in_the_kernel_is_counted() {
    for (fault, how) in [("drain:panic:6", "panicked"), ("drain:error:6", "ended")] {
        let Some((_, session, _world)) = fails(fault, &[]) else { return };
        assert!(names_thread(&session, "ncclflow-drain"), "{}", session["errors"]);
        assert!(names_thread(&session, how), "{}", session["errors"]);
        assert_counted(&session);
    }
}

#[test]
fn each_other_thread_that_dies_ends_the_session_too() {
    for (fault, name, more) in [
        ("rows:panic:2", "ncclflow-rows", &["--metrics", "127.0.0.1:0"][..]),
        // When the recording is over.
        ("files:panic:1", "ncclflow-files", &[]),
        ("who:panic:1", "ncclflow-who", &[]),
        ("session:panic:3", "the recording's thread", &["--on-hang", "1"]),
        // When the first client has come.
        ("metrics:panic:1", "ncclflow-metric", &["--metrics", "127.0.0.1:0"]),
    ] {
        let Some((said, session, _world)) = fails(fault, more) else { return };
        assert!(names_thread(&session, name), "{fault}: {} {said}", session["errors"]);
        assert_counted(&session);
    }
}

/// A service manager: what came through its socket, and when. It is read at once, as the socket holds ten messages, and
/// who sends more waits.
struct Manager {
    heard: Arc<Mutex<Vec<(Instant, String)>>>,
    path: PathBuf,
}

impl Manager {
    fn new(folder: &Path) -> Self {
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let heard = Arc::<Mutex<Vec<_>>>::default();
        let into = Arc::clone(&heard);
        // It ends with the test.
        thread::spawn(move || {
            let mut bytes = [0; 256];
            while let Ok(len) = socket.recv(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..len]).trim_end().to_owned();
                into.lock().unwrap().push((Instant::now(), text));
            }
        });
        Self { heard, path }
    }

    fn heard(&self) -> Vec<(Instant, String)> {
        self.heard.lock().unwrap().clone()
    }

    /// How often it has heard this.
    fn count(&self, what: &str) -> usize {
        self.heard().iter().filter(|(_, heard)| heard == what).count()
    }

    fn forget(&self) {
        self.heard.lock().unwrap().clear();
    }

    fn environment(&self) -> [(&str, &str); 2] {
        [("NOTIFY_SOCKET", self.path.to_str().unwrap()), ("WATCHDOG_USEC", "1000000")]
    }
}

/// Where its metrics are.
fn address(said: &str) -> Option<&str> {
    said.split("http://").nth(1)?.split('/').next()
}

/// Status and body.
fn get(said: &str, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address(said).unwrap())?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    Ok((head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned()))
}

#[test]
fn systemd_hears_of_the_drain_as_long_as_it_comes_round() {
    let Some(World { ncclflow, folder, bed }) = world() else { return };
    let manager = Manager::new(folder.path());
    let out = |name: &str| folder.path().join(name);
    let metrics = ["--metrics", "127.0.0.1:0"];
    let begun = Instant::now();
    let good = Recorder::start_in(&ncclflow, &bed.pid_list(), &out("good"), &metrics, &manager.environment())
        .unwrap();
    let armed = Instant::now();
    // It wants to be fed once a second, and the drain pauses for half a second.
    wait_until("it is ready, and feeds the watchdog", PATIENCE, || {
        let is_fed = manager.count("WATCHDOG=1") >= 3;
        is_fed && manager.count("READY=1") == 1 && armed.elapsed() >= Duration::from_secs(2)
    });
    let fed = manager.count("WATCHDOG=1");
    let time = begun.elapsed();
    assert!(fed as u128 <= time.as_millis() / 100, "{fed} times in {time:?}: {:?}", manager.heard());
    for path in ["/healthz", "/readyz"] {
        wait_until(path, PATIENCE, || get(good.said(), path).is_ok_and(|(status, _)| status == 200));
    }
    good.interrupt().unwrap();
    wait_until("it tells of its end", PATIENCE, || manager.count("STOPPING=1") == 1);

    manager.forget();
    let environment = [&manager.environment()[..], &[("NCCLFLOW_FAULT", "drain:hang:4")]].concat();
    let stuck =
        Recorder::start_in(&ncclflow, &bed.pid_list(), &out("stuck"), &metrics, &environment).unwrap();
    // It comes round a few times before.
    wait_until("the watchdog is not fed, and /healthz and /readyz tell of it", PATIENCE, || {
        let is_silent = |heard: &[(Instant, String)]| {
            heard.last().is_some_and(|(at, _)| at.elapsed() > Duration::from_secs(2))
        };
        let unhealthy = || get(stuck.said(), "/healthz").is_ok_and(|(status, _)| status == 503);
        let unready = || {
            get(stuck.said(), "/readyz")
                .is_ok_and(|(status, why)| status == 503 && why.contains("not been taken"))
        };
        is_silent(&manager.heard()) && unhealthy() && unready()
    });
}
