//! What the tracer itself can run out of: descriptors, and somebody who reads its lines. Tenants can bring that about,
//! and it may cost neither what is recorded nor the end.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_arch = "x86_64")]

use std::{
    io::Write as _,
    os::fd::AsRawFd as _,
    sync::{Mutex, PoisonError},
};

use ncclflow_e2e::harness::{
    callers::{self, Caller, Reduce},
    prelude::*,
};
use rustix::process::{Pid, Resource, Rlimit, kill_process, prlimit};

/// Whoever records the node sees the processes of the other test, too.
static ALONE: Mutex<()> = Mutex::new(());
const CALLS: u64 = 200;
/// The end takes a second or so; the rest is for a busy machine.
const BOUND: Duration = Duration::from_secs(60);

struct Tenants {
    ncclflow: PathBuf,
    folder: tempfile::TempDir,
    library: PathBuf,
    caller: PathBuf,
}

impl Tenants {
    fn new() -> Option<Self> {
        let (Some(ncclflow), true) = (programs::ncclflow(), root()) else { return None };
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libnccl.so.2");
        callers::library(&library, Reduce::Returns(3)).unwrap()?;
        let caller = callers::program(folder.path()).unwrap().unwrap();
        Some(Self { ncclflow, folder, library, caller })
    }

    fn caller(&self) -> Caller {
        Caller::start(&self.caller, &self.library, 0, CALLS, 0).unwrap()
    }

    /// Calls that were recorded, and hits, of probes of our library.
    fn calls(&self, session: &Value) -> (u64, u64) {
        let libraries = list(&session["libraries"]);
        let ours = libraries.iter().position(|library| library["path"] == self.library.to_str().unwrap());
        let probes = list(&session["probes"]).iter();
        let reduce =
            probes.filter(|probe| probe["library"] == ours.unwrap() && probe["function"] == "ncclAllReduce");
        let sum = |key: &str| reduce.clone().map(|probe| number(&probe[key])).sum::<u64>();
        (sum("delivered"), sum("hits"))
    }
}

/// No descriptor is left from some moment on: processes that are traced stay traced, what stays unseen is said, and the
/// recording ends whole.
#[test]
fn without_descriptors_the_recording_goes_on_and_ends_whole() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(world) = Tenants::new() else { return };
    let mut first = world.caller();
    let out = world.folder.path().join("out");
    let recorder = Recorder::of_node(&out, "--level api --on-hang 600").unwrap();
    wait_until("it is traced", BOUND, || are_traced(&session_so_far(&out), &[first.pid()]));

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
    let session = session(&out);
    // Whether a file could not be written for want of a descriptor depends on when it was wanted.
    let code = i32::from(session["state"] == "write_failed");
    assert_eq!(status.code(), Some(code), "{said}");
    assert!(code == 1 || session["state"] == "complete", "{session:#}");
    assert_eq!(world.calls(&session), (4 * CALLS, 4 * CALLS), "{said}");
    assert!(session["changed_libraries"].as_array().is_none_or(Vec::is_empty), "the file is what it was");
    assert_eq!(target(&session, first.pid()).unwrap()["exited"], false, "it has not ended");
    let unseen = |key: &str| session[key].as_array().map_or(0, Vec::len);
    assert!(unseen("errors") + unseen("passed_over") > 0, "nothing of it was said: {session:#}");
    let read = ncclflow_of("export -f jsonl -o", &[&world.folder.path().join("lines"), &out]).ok();
    assert!(!read.stdout.contains("no end") && !read.stderr.contains("no end"), "{read:?}");
}

/// Nobody reads what it says, and the pipe is full.
#[test]
fn a_full_pipe_stops_no_recording_and_no_end() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(world) = Tenants::new() else { return };
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
    wait_until("it is traced", BOUND, || are_traced(&session_so_far(&out), &[first.pid()]));
    first.go().unwrap();
    first.wait().unwrap();
    let begun = Instant::now();
    kill_process(Pid::from_child(&recorder.0), Signal::INT).unwrap();
    let status = recorder.0.wait().unwrap();
    assert!(status.success() && begun.elapsed() < BOUND, "{status} after {:?}", begun.elapsed());
    let session = session(&out);
    assert_eq!((&session["state"], world.calls(&session)), (&"complete".into(), (CALLS, CALLS)));
}
