//! What tenants have in common is shared out: cookies, ring buffers. Who takes too much of it loses of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_arch = "x86_64")]

use std::sync::{Mutex, PoisonError};

use ncclflow_e2e::harness::{
    callers::{self, Caller, Reduce},
    prelude::*,
};

/// Whoever records the node sees the processes of the other test, too, and their libraries are alike.
static ALONE: Mutex<()> = Mutex::new(());

/// `None`: there is no C compiler.
fn library(folder: &Path, name: &str, reduce: Reduce) -> Option<PathBuf> {
    let place = folder.join(name);
    fs::create_dir_all(&place).unwrap();
    callers::library(&place.join("libnccl.so.2"), reduce).unwrap()
}

/// Cookies that probes of libraries below this folder have.
fn cookies(session: &Value, folder: &Path) -> usize {
    let is_ours = |index: &Value| {
        let library = &session["libraries"][usize::try_from(number(index)).unwrap()];
        Path::new(text(&library["path"])).starts_with(folder)
    };
    list(&session["probes"]).iter().filter(|probe| is_ours(&probe["library"])).count()
}

/// A hundred virtual environments with one NCCL cost the cookies of one. Libraries that the kernel refuses, one after
/// the other, cost those of one, too.
#[test]
fn cookies_are_for_what_is_different_and_come_back_from_what_is_refused() {
    let Some(_ncclflow) = programs::tracer() else { return };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let Some(one) = library(folder.path(), "one", Reduce::Returns(1)) else { return };
    let Some(refused) = library(folder.path(), "refused", Reduce::Breakpoint) else { return };
    let caller = callers::program(folder.path()).unwrap().unwrap();
    let copy = |of: &Path, name: String| {
        let place = folder.path().join(name);
        fs::create_dir_all(&place).unwrap();
        let copy = place.join("libnccl.so.2");
        fs::copy(of, &copy).unwrap();
        copy
    };
    let start = |library: &Path| Caller::start(&caller, library, 0, 3, 0).unwrap();
    let mut alone = start(&one);
    let out = folder.path().join("out");
    let recorder = Recorder::of_node(&out, "--level api").unwrap();
    wait_until("the first is traced", Duration::from_secs(30), || are_traced(&session(&out), &[alone.pid()]));
    let mut many: Vec<Caller> = (0..100).map(|n| start(&copy(&one, format!("environment-{n}")))).collect();
    let bad: Vec<Caller> = (0..20).map(|n| start(&copy(&refused, format!("bad-{n}")))).collect();
    wait_until("all are seen", Duration::from_secs(120), || {
        let session = session(&out);
        let pids: Vec<u32> = many.iter().map(Caller::pid).collect();
        are_traced(&session, &pids) && bad.iter().all(|caller| target(&session, caller.pid()).is_some())
    });
    for caller in many.iter_mut().chain([&mut alone]) {
        caller.go().unwrap();
        caller.wait().unwrap();
    }
    recorder.interrupt().unwrap();
    let session = session(&out);
    assert!(
        bad.iter().all(|caller| !are_traced(&session, &[caller.pid()])),
        "the kernel refuses a breakpoint on one"
    );
    let probes = list(&session["probes"]);
    let of_one = cookies(&session, &folder.path().join("one"));
    assert!(of_one > 0, "{probes:#?}");
    let all = cookies(&session, folder.path());
    assert!(all <= 2 * of_one, "{all} cookies for 121 files of two contents, {of_one} for one");
    let of_calls = probes.iter().filter(|probe| probe["function"] == "ncclAllReduce");
    let calls: u64 = of_calls.map(|probe| number(&probe["delivered"])).sum();
    assert!(calls >= 303, "{calls} calls of 101 processes were recorded");
}

/// How long a process has run on a processor, in clock ticks: proc_pid_stat(5).
fn ticks(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = text.rsplit_once(") ").unwrap();
    fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// Two users' processes in one ring buffer: one floods it, and the other loses nothing.
#[test]
fn a_user_who_floods_a_ring_buffer_loses_its_own_records_and_is_named() {
    const FLOOD: u64 = 2_000_000;
    // The records of all of them, of at most 1,280 bytes, are less than the 64 KiB of its share: nobody need come for them.
    const CALLS: u64 = 50;
    const PAUSE_US: u64 = 20_000;
    // A tenth of a second: many times what a buffer holds.
    const FLOODED: u64 = 10;
    let Some(_ncclflow) = programs::tracer() else { return };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = library(folder.path(), "one", Reduce::Returns(1)) else { return };
    let caller = callers::program(folder.path()).unwrap().unwrap();
    // Others than root must be able to read it.
    std::process::Command::new("chmod").args(["-R", "a+rX"]).arg(folder.path()).status().unwrap();
    let flood = Caller::start(&caller, &library, 1_234_001, FLOOD, 0).unwrap();
    // There are four ring buffers, by the number of the process.
    let mut others = Vec::new();
    let mut victim = loop {
        let other = Caller::start(&caller, &library, 1_234_002, CALLS, PAUSE_US).unwrap();
        if other.pid() % 4 == flood.pid() % 4 {
            break other;
        }
        others.push(other);
        assert!(others.len() < 200, "no process has a number that fits");
    };
    drop(others);
    let mut flood = flood;
    let out = folder.path().join("out");
    let options = "--level api --buffer-size 1 --buffer ring --user 1234001 --user 1234002 --files-limit 8G";
    let recorder = Recorder::of_node(&out, options).unwrap();
    wait_until("both are traced", Duration::from_secs(30), || {
        are_traced(&session(&out), &[flood.pid(), victim.pid()])
    });
    flood.go().unwrap();
    wait_until("it floods", Duration::from_mins(1), || ticks(flood.pid()) >= FLOODED);
    victim.go().unwrap();
    victim.wait().unwrap();
    let (flooder, pid) = (flood.pid(), victim.pid());
    drop(flood);
    recorder.interrupt().unwrap();
    let session = session(&out);
    let lost = number(&session["loss"]["records_lost"]);
    assert!(lost > 0, "the flood was none: {:#}", session["loss"]);
    let calls = calls_of(&out, pid);
    assert_eq!(calls, CALLS, "of {lost} lost records none is of process {pid}; {flooder} floods");
    let over = list(&session["over_budget"]);
    let of_buffer = over.iter().filter(|over| over["budget"] == "kernel_buffer");
    let tenants: Vec<&str> = of_buffer.map(|over| text(&over["tenant"])).collect();
    assert_eq!(tenants, ["user 1234001 (1234001)"], "{over:#?}");
}

/// Calls of a process that came into the recording, by the lines that are made of it.
fn calls_of(out: &Path, pid: u32) -> u64 {
    let is_calls =
        |name: &PathBuf| name.file_name().is_some_and(|name| name.to_string_lossy().starts_with("api"));
    let lines =
        exported::names_below(out).into_iter().filter(is_calls).flat_map(|name| read_lines(&out.join(name)));
    lines.filter(|line| line["pid"] == pid && line["function"] == "AllReduce").count() as u64
}
