//! `DIR/recording/`: whole blocks after a SIGKILL, one recording for each window, and of all processes of the node. That an
//! export of it makes the same files is checked after every traced run of the other tests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use ncclflow_e2e::harness::{bed::Bed, exported, programs, progress, recorder::Recorder};
use rustix::process::Signal;
use serde_json::Value;
use test_support::{root, wait_until};

struct World {
    ncclflow: PathBuf,
    folder: tempfile::TempDir,
    bed: Bed,
}

/// A job that calls all-reduce for a long time.
fn world(arguments: &[&str]) -> Option<World> {
    let (ncclflow, bed) = (programs::ncclflow()?, programs::bed()?);
    let library = programs::nccl("2.27.5-cu12")?;
    if !root() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let all = [&["--ranks", "2", "--bytes", "4096", "--timeout", "300"][..], arguments].concat();
    let bed = Bed::start(&bed, &library, folder.path(), &all).unwrap();
    Some(World { ncclflow, folder, bed })
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn lines(folder: &Path) -> usize {
    let files = exported::files_below(folder).into_iter();
    let ops = files.filter(|(name, _)| name.to_string_lossy().contains("proxy_flow"));
    ops.map(|(_, text)| String::from_utf8_lossy(&text).lines().count()).sum()
}

/// The ops of rank 0.
fn ops(folder: &Path) -> Vec<Value> {
    let mut names = exported::names_below(folder).into_iter();
    let name = names.find(|name| name.to_string_lossy().contains("proxy_flow_rank0")).unwrap();
    let text = fs::read_to_string(folder.join(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Time by the records' clock.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap()
}

/// Folders of windows.
fn windows(out: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(out).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_dir()).collect()
}

/// Whether so much is in a window, which may still be open, that its files say something.
fn is_full(window: &Path) -> bool {
    let session = fs::read(window.join("session.json")).unwrap_or_default();
    let session: Value = serde_json::from_slice(&session).unwrap_or_default();
    session["recording"]["records"].as_u64().is_some_and(|records| records > 100)
}

#[test]
fn a_killed_recording_has_whole_blocks_and_says_that_it_has_no_end() {
    let Some(World { ncclflow, folder, bed }) =
        world(&["--iters", "1000000", "--interval-ms", "1", "--sync"])
    else {
        return;
    };
    let out = folder.path().join("out");
    let recorder = Recorder::start(&ncclflow, &bed.pid_list(), &out, &[]).unwrap();
    bed.go().unwrap();
    progress::wait_for_blocks(&out, 3);
    let killed_ns = monotonic_ns();
    recorder.signal(Signal::KILL).unwrap();
    recorder.finish().unwrap();
    let again = folder.path().join("again");
    let mut export = Command::new(&ncclflow);
    let exported = export.arg("export").arg(&out).args(["-f", "jsonl", "-o"]).arg(&again).output().unwrap();
    let said = String::from_utf8_lossy(&exported.stdout);
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    assert!(said.contains("the recording has no end") && !said.contains("damaged"), "{said}");
    let ops = ops(&again);
    let time = |op: Option<&Value>| op.unwrap()["ts_ns"].as_u64().unwrap();
    let (first, last) = (time(ops.first()), time(ops.last()));
    assert!(last <= killed_ns && last + 2_500_000_000 > killed_ns, "{first}..{last} of ..{killed_ns}");
    assert!(first + 100_000_000 < last, "of some blocks: {first}..{last}");
}

#[test]
fn each_window_has_its_own_recording() {
    let Some(World { ncclflow, folder, bed }) =
        world(&["--iters", "1000000", "--interval-ms", "1", "--sync"])
    else {
        return;
    };
    let out = folder.path().join("out");
    let recorder = Recorder::start(&ncclflow, &bed.pid_list(), &out, &["--rotate", "1"]).unwrap();
    bed.go().unwrap();
    // How much comes in the second of a window, the machine decides.
    wait_until("two of three windows have records", Duration::from_mins(2), || {
        let windows = windows(&out);
        windows.len() >= 3 && windows.iter().filter(|window| is_full(window)).count() >= 2
    });
    let said = recorder.interrupt().unwrap();
    let session = json(&out.join("session.json"));
    let windows = session["windows"].as_array().unwrap();
    assert!(windows.len() >= 3, "{said}");
    let mut full = 0;
    for window in windows {
        let window = out.join(window["folder"].as_str().unwrap());
        let kept = &json(&window.join("session.json"))["recording"];
        assert_eq!(kept["lost"], 0, "{kept}");
        let again = window.join("again");
        exported::lines(&ncclflow, &window, &again);
        let again = exported::files_below(&again);
        if is_full(&window) {
            assert!(again.len() >= 5);
            full += 1;
        }
        for (name, content) in again {
            assert!(fs::read(window.join(&name)).unwrap() == content, "{} differs", name.display());
        }
    }
    assert!(full >= 2, "{session:#}");
}

#[test]
fn processes_of_the_node_have_their_ends_in_the_recording() {
    let Some(World { ncclflow, folder, mut bed }) = world(&["--iters", "200", "--mode", "processes"]) else {
        return;
    };
    let out = folder.path().join("out");
    let mut recorder = Recorder::start_all(&ncclflow, &out, &["--comm", "ncclflow-bed"]).unwrap();
    // Where there is much to look at, it begins before it has seen all processes.
    for pid in &bed.ready.pids {
        recorder.hear(&format!("process {pid} (ncclflow-bed): NCCL ")).unwrap();
    }
    bed.go().unwrap();
    assert!(bed.finish().unwrap().1.ok);
    for pid in &bed.ready.pids {
        recorder.hear(&format!("process {pid} exited")).unwrap();
    }
    recorder.interrupt().unwrap();
    exported::check(&ncclflow, &out);
    assert!(lines(&out) > 0);
}
