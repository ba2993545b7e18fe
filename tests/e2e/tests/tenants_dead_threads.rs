//! A session of which a thread dies ends as failed, loudly: with what was lost counted, no probe left, and the
//! job as it was. systemd and Kubernetes are told of one that hangs.
//!
//! The faults are those of `NCCLFLOW_FAULT`, which a debug build has.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixDatagram,
    sync::{Arc, Mutex},
};

use ncclflow_e2e::harness::{kernel_objects, prelude::*};

/// The rest is for a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);
const VERSION: &str = "2.27.5-cu12";
/// A bed that waits. `None` if the machine lacks something.
fn world() -> Option<World> {
    World::start(VERSION, "--ranks 2 --iters 800 --bytes 65536 --ops allreduce --channels 1")
}

/// Records with this fault, of which the times count from when the job is let go, until the session ends by itself. Gives
/// what it said and its `session.json`.
fn fails(fault: &str, more: &[&str]) -> Option<(String, Value, World)> {
    let mut world = world()?;
    let out = world.out();
    // If it did not end by itself, it would end well, and that is no failure.
    let time = if fault.starts_with("files") { "2" } else { "60" };
    let arguments = [&["-d", time], more].concat();
    let gated = [("NCCLFLOW_FAULT", &*format!("{fault}:{}", world.path("go").display()))];
    let pids = world.bed.pid_list();
    let recorder = Recorder::start_in(&world.ncclflow, &pids, &out, &arguments, &gated).unwrap();
    let made = kernel_objects::of_process(recorder.pid()).unwrap();
    assert!(!made.links.is_empty(), "it has probes");
    world.bed.go().unwrap();
    if let Some(address) = recorder.metrics_address() {
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
    world.bed.end();
    let session = session(&out);
    assert_eq!(session["state"], "failed", "{fault}: {session:#}");
    Some((said, session, world))
}

fn names_thread(session: &Value, thread: &str) -> bool {
    list(&session["errors"]).iter().any(|error| text(error).contains(thread))
}

/// Hits of an open session, as the kernel counted them, and what became of them.
fn assert_counted(session: &Value) {
    let [hits, disarmed, delivered, lost, dropped] =
        ["hits", "disarmed", "delivered", "lost", "dropped"].map(|key| sum(&session["probes"], key));
    let hits = hits - disarmed;
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
    let delivered = sum(&session["probes"], "delivered");
    assert!(delivered > 0);
    let loss = &session["loss"];
    assert_eq!(number(&loss["records_unaccounted"]), 0, "{loss}");
    let recorded = number(&session["recording"]["records"]);
    assert_eq!(delivered, recorded + number(&loss["records_not_recorded"]), "{loss}");
    assert!(number(&loss["records_not_recorded"]) + number(&loss["records_dropped"]) > 0, "{loss}");
    // What is there is whole blocks.
    ncclflow_of("export -f jsonl -o", &[world.path("again"), world.out()]).ok();
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

/// Status and body.
fn get(recorder: &Recorder, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(recorder.metrics_address().unwrap())?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    Ok((head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned()))
}

#[test]
fn systemd_hears_of_the_drain_as_long_as_it_comes_round() {
    let Some(world) = world() else { return };
    let manager = Manager::new(world.folder.path());
    let (pids, metrics) = (world.bed.pid_list(), ["--metrics", "127.0.0.1:0"]);
    let record = |name: &str, environment: &[(&str, &str)]| {
        Recorder::start_in(&world.ncclflow, &pids, &world.path(name), &metrics, environment).unwrap()
    };
    let begun = Instant::now();
    let good = record("good", &manager.environment());
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
        wait_until(path, PATIENCE, || get(&good, path).is_ok_and(|(status, _)| status == 200));
    }
    good.interrupt().unwrap();
    wait_until("it tells of its end", PATIENCE, || manager.count("STOPPING=1") == 1);

    manager.forget();
    let environment = [&manager.environment()[..], &[("NCCLFLOW_FAULT", "drain:hang:4")]].concat();
    let stuck = record("stuck", &environment);
    // It comes round a few times before.
    wait_until("the watchdog is not fed, and /healthz and /readyz tell of it", PATIENCE, || {
        let is_silent = |heard: &[(Instant, String)]| {
            heard.last().is_some_and(|(at, _)| at.elapsed() > Duration::from_secs(2))
        };
        let unhealthy = || get(&stuck, "/healthz").is_ok_and(|(status, _)| status == 503);
        let unready = || {
            get(&stuck, "/readyz").is_ok_and(|(status, why)| status == 503 && why.contains("not been taken"))
        };
        is_silent(&manager.heard()) && unhealthy() && unready()
    });
}
