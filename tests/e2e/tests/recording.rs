//! `DIR/recording/`: whole blocks after a SIGKILL, one recording for each window, and of all processes of the node. That a
//! replay of it makes the same files is checked after every traced run of the other tests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use ncclflow_e2e::harness::{bed::Bed, programs, recorder::Recorder, replay};
use rustix::process::Signal;
use serde_json::Value;
use test_support::root;

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
    let files = replay::files_below(folder).into_iter();
    let ops = files.filter(|(name, _)| name.to_string_lossy().contains("proxy_flow"));
    ops.map(|(_, text)| String::from_utf8_lossy(&text).lines().count()).sum()
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
    // A block is closed after a second at the latest.
    thread::sleep(Duration::from_millis(3500));
    recorder.signal(Signal::KILL).unwrap();
    recorder.finish().unwrap();
    let again = folder.path().join("again");
    let replayed = Command::new(&ncclflow).arg("replay").arg(&out).arg("-o").arg(&again).output().unwrap();
    let said = String::from_utf8_lossy(&replayed.stdout);
    assert!(replayed.status.success(), "{}", String::from_utf8_lossy(&replayed.stderr));
    assert!(said.contains("the recording has no end") && !said.contains("damaged"), "{said}");
    let times = |folder: &Path| {
        let files = replay::files_below(folder).into_iter();
        let ops = files.filter(|(name, _)| name.to_string_lossy().contains("proxy_flow_rank0"));
        let text: String = ops.map(|(_, text)| String::from_utf8_lossy(&text).into_owned()).collect();
        let line = |line: &str| serde_json::from_str::<Value>(line).unwrap()["ts_ns"].as_u64().unwrap();
        (text.lines().next().map(line).unwrap(), text.lines().last().map(line).unwrap())
    };
    let ((first, last), (live_first, live_last)) = (times(&again), times(&out));
    assert!(first == live_first && last + 1_500_000_000 > live_last, "{first}..{last} of ..{live_last}");
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
    // What is in the windows: a second of the job each.
    thread::sleep(Duration::from_millis(3500));
    recorder.signal(Signal::INT).unwrap();
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success(), "{said}");
    let session = json(&out.join("session.json"));
    let windows = session["windows"].as_array().unwrap();
    assert!(windows.len() >= 3, "{said}");
    for window in windows {
        let window = out.join(window["folder"].as_str().unwrap());
        let kept = &json(&window.join("session.json"))["recording"];
        assert!(kept["records"].as_u64().unwrap() > 100 && kept["lost"] == 0, "{kept}");
        let again = window.join("again");
        let replayed = Command::new(&ncclflow).arg("replay").arg(&window).arg("-o").arg(&again).output();
        assert!(replayed.unwrap().status.success());
        let again = replay::files_below(&again);
        assert!(again.len() >= 5);
        for (name, content) in again {
            assert!(fs::read(window.join(&name)).unwrap() == content, "{} differs", name.display());
        }
    }
}

#[test]
fn processes_of_the_node_have_their_ends_in_the_recording() {
    let Some(World { ncclflow, folder, mut bed }) = world(&["--iters", "200", "--mode", "processes"]) else {
        return;
    };
    let out = folder.path().join("out");
    let recorder = Recorder::start_all(&ncclflow, &out, &["--comm", "ncclflow-bed"]).unwrap();
    bed.go().unwrap();
    assert!(bed.finish().unwrap().1.ok);
    // The ends of the processes are seen, and told.
    thread::sleep(Duration::from_secs(2));
    recorder.signal(Signal::INT).unwrap();
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success(), "{said}");
    replay::check(&ncclflow, &out, &out);
    assert!(lines(&out) > 0);
}
