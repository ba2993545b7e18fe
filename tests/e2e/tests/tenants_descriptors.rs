//! What the tracer itself can run out of: descriptors, and somebody who reads its lines. Tenants can bring that about,
//! and it may cost neither what is recorded nor the end.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_arch = "x86_64")]

use std::{
    fs,
    io::Write as _,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ncclflow_e2e::harness::{
    callers::{self, Caller, Reduce},
    node::Killed,
    programs,
    recorder::Recorder,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;
use test_support::{need, root, wait_until};

/// Whoever records the node sees the processes of the other test, too.
static ALONE: Mutex<()> = Mutex::new(());
const CALLS: u64 = 200;
/// The end takes a second or so; the rest is for a busy machine.
const BOUND: Duration = Duration::from_secs(60);

fn session(out: &Path) -> Value {
    serde_json::from_slice(&fs::read(out.join("session.json")).unwrap_or_default()).unwrap_or_default()
}

fn traced(session: &Value, pid: u32) -> bool {
    let mut targets = session["targets"].as_array().into_iter().flatten();
    targets.any(|target| target["pid"] == pid && target["untraced"].is_null())
}

struct World {
    ncclflow: PathBuf,
    folder: tempfile::TempDir,
    library: PathBuf,
    caller: PathBuf,
}

impl World {
    fn new() -> Option<Self> {
        let (Some(ncclflow), true) = (programs::ncclflow(), root()) else { return None };
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libnccl.so.2");
        let made = callers::library(&library, Reduce::Returns(3)).unwrap();
        if !need("cc", made.is_some(), "install a C compiler") {
            return None;
        }
        let caller = callers::program(folder.path()).unwrap().unwrap();
        Some(Self { ncclflow, folder, library, caller })
    }

    fn caller(&self) -> Caller {
        Caller::start(&self.caller, &self.library, 0, CALLS, 0).unwrap()
    }

    /// Calls that were recorded, and hits, of probes of our library.
    fn calls(&self, session: &Value) -> (u64, u64) {
        let libraries = session["libraries"].as_array().unwrap();
        let ours = libraries.iter().position(|library| library["path"] == self.library.to_str().unwrap());
        let probes = session["probes"].as_array().unwrap().iter();
        let reduce =
            probes.filter(|probe| probe["library"] == ours.unwrap() && probe["function"] == "ncclAllReduce");
        let sum = |key: &str| reduce.clone().map(|probe| probe[key].as_u64().unwrap()).sum::<u64>();
        (sum("delivered"), sum("hits"))
    }
}

/// No descriptor is left from some moment on: processes that are traced stay traced, what stays unseen is said, and the
/// recording ends whole.
#[test]
fn without_descriptors_the_recording_goes_on_and_ends_whole() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(world) = World::new() else { return };
    let mut first = world.caller();
    let out = world.folder.path().join("out");
    let recorder =
        Recorder::start_all(&world.ncclflow, &out, &["--level", "api", "--on-hang", "600"]).unwrap();
    wait_until("it is traced", BOUND, || traced(&session(&out), first.pid()));

    let pid = Pid::from_raw(recorder.pid().cast_signed()).unwrap();
    let open = fs::read_dir(format!("/proc/{}/fd", recorder.pid())).unwrap().count() as u64;
    // As many as it has: numbers below this one are taken.
    let limit = Rlimit { current: Some(open), maximum: Some(1 << 12) };
    prlimit(Some(pid), Resource::Nofile, limit).unwrap();
    // What comes now cannot be looked at, and is recorded all the same: the probes are on the file.
    let mut later: Vec<Caller> = (0..3).map(|_| world.caller()).collect();
    thread::sleep(Duration::from_secs(3));
    for caller in later.iter_mut().chain([&mut first]) {
        caller.go().unwrap();
        caller.wait().unwrap();
    }
    thread::sleep(Duration::from_secs(1));
    let begun = Instant::now();
    recorder.signal(Signal::INT).unwrap();
    let (status, said) = recorder.finish().unwrap();
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
    // 1: something could not be seen.
    assert!(matches!(status.code(), Some(0 | 1)), "{status}: {said}");
    let session = session(&out);
    assert!(matches!(session["state"].as_str(), Some("complete" | "write_failed")), "{session:#}");
    assert_eq!(world.calls(&session), (4 * CALLS, 4 * CALLS), "{said}");
    assert!(session["changed_libraries"].as_array().is_none_or(Vec::is_empty), "the file is what it was");
    let first = session["targets"].as_array().unwrap().iter().find(|target| target["pid"] == first.pid());
    assert_eq!(first.unwrap()["exited"], false, "it has not ended");
    let unseen = |key: &str| session[key].as_array().map_or(0, Vec::len);
    assert!(unseen("errors") + unseen("passed_over") > 0, "nothing of it was said: {session:#}");
    let mut read = Command::new(&world.ncclflow);
    read.arg("export").arg(&out).args(["-f", "jsonl", "-o"]).arg(world.folder.path().join("lines"));
    let read = read.output().unwrap();
    let said = String::from_utf8_lossy(&read.stderr);
    assert!(read.status.success() && !said.contains("no end"), "{said}");
}

/// Nobody reads what it says, and the pipe is full.
#[test]
fn a_full_pipe_stops_no_recording_and_no_end() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(world) = World::new() else { return };
    let (_unread, mut full) = std::io::pipe().unwrap();
    // SAFETY: both concern the pipe of this test only.
    let bytes = unsafe {
        libc::fcntl(full.as_raw_fd(), libc::F_SETPIPE_SZ, 4096);
        libc::fcntl(full.as_raw_fd(), libc::F_GETPIPE_SZ)
    };
    full.write_all(&vec![b'x'; usize::try_from(bytes).unwrap()]).unwrap();
    let mut first = world.caller();
    let out = world.folder.path().join("out");
    let mut command = Command::new(&world.ncclflow);
    command.args(["record", "--all", "--level", "api", "--no-cache", "-o"]).arg(&out);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(full).spawn().unwrap();
    let mut recorder = Killed(child);
    wait_until("it is traced", BOUND, || traced(&session(&out), first.pid()));
    first.go().unwrap();
    first.wait().unwrap();
    let begun = Instant::now();
    kill_process(Pid::from_child(&recorder.0), Signal::INT).unwrap();
    let status = recorder.0.wait().unwrap();
    assert!(status.success() && begun.elapsed() < BOUND, "{status} after {:?}", begun.elapsed());
    let session = session(&out);
    assert_eq!((&session["state"], world.calls(&session)), (&"complete".into(), (CALLS, CALLS)));
}
