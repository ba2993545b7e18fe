//! `record --window-iterations`: the files of a window begin and end with an iteration of the workload, which
//! calls a group of three collectives and pauses.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use ncclflow_e2e::harness::{bed::Bed, exported, programs, progress, recorder::Recorder};
use rustix::process::Signal;
use serde_json::Value;
use test_support::root;

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// What the workload calls in each iteration, in this order.
const STEP: [&str; 3] = ["AllReduce", "AllGather", "ReduceScatter"];

struct Job {
    folder: tempfile::TempDir,
    ncclflow: PathBuf,
    bed: Bed,
    output: PathBuf,
    flag: PathBuf,
    recorder: Recorder,
}

impl Job {
    /// A job whose iterations go on.
    fn start(arguments: &[&str]) -> Option<Self> {
        let job = Self::prepare(&["--iters", "1000000", "--interval-ms", "20"], arguments)?;
        job.bed.go().unwrap();
        job.wait_for_calls(4);
        Some(job)
    }

    /// A job that waits, and its recording.
    fn prepare(iterations: &[&str], arguments: &[&str]) -> Option<Self> {
        let (Some(ncclflow), Some(bed), true) = (programs::ncclflow(), programs::bed(), root()) else {
            return None;
        };
        let library = programs::nccl("2.27.5-cu12")?;
        let folder = tempfile::tempdir().unwrap();
        let calls = folder.path().join("calls").display().to_string();
        let fixed = "--mode processes --ranks 2 --ops allreduce,allgather,reducescatter --group 3 \
            --bytes 4096 --sync --channels 2 --timeout 600";
        let mut all: Vec<&str> = fixed.split_whitespace().collect();
        all.extend(["--call-log", &calls]);
        all.extend(iterations);
        let bed = Bed::start(&bed, &library, folder.path(), &all).unwrap();
        let (output, flag) = (folder.path().join("out"), folder.path().join("flag"));
        let flag_text = flag.display().to_string();
        let mut all = vec!["--window-flag", &flag_text];
        all.extend(arguments);
        let recorder = Recorder::start(&ncclflow, &bed.pid_list(), &output, &all).unwrap();
        Some(Self { folder, ncclflow, bed, output, flag, recorder })
    }

    fn wait_for_calls(&self, more: usize) {
        progress::wait_for_calls(&self.folder.path().join("calls"), &self.bed.ready.pids, more);
    }

    /// Of the only window: its folder and its report.
    fn end(self) -> (tempfile::TempDir, PathBuf, PathBuf, Value, Vec<u32>) {
        let Self { folder, ncclflow, bed, output, recorder, .. } = self;
        recorder.signal(Signal::INT).unwrap();
        let (status, said) = recorder.finish().unwrap();
        assert!(status.success(), "{said}");
        let session = json(&output.join("session.json"));
        let [window] = &**session["windows"].as_array().unwrap() else { panic!("{said}") };
        let path = output.join(window["folder"].as_str().unwrap());
        let own = json(&path.join("session.json"));
        assert_eq!(&own["window"], window);
        assert!(own["loss"].as_object().unwrap().values().all(|count| count == 0), "{:#}", own["loss"]);
        (folder, ncclflow, path, window.clone(), bed.ready.pids.clone())
    }
}

/// The lines of the files of this kind, by process.
fn lines(folder: &Path, kind: &str) -> BTreeMap<u32, Vec<Value>> {
    let mut by_pid: BTreeMap<u32, Vec<Value>> = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() {
            for (pid, lines) in lines(&entry.path(), kind) {
                by_pid.entry(pid).or_default().extend(lines);
            }
        } else if name.starts_with(&format!("{kind}_rank")) && !name.contains("_pid") {
            for line in fs::read_to_string(entry.path()).unwrap().lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                by_pid.entry(u32::try_from(line["pid"].as_u64().unwrap()).unwrap()).or_default().push(line);
            }
        }
    }
    by_pid
}

/// Numbers of collectives by process, NCCL's own count, which the workload's is, too.
fn numbers(folder: &Path) -> BTreeMap<u32, Vec<u64>> {
    let by_pid = lines(folder, "proxy_flow").into_iter().map(|(pid, lines)| {
        let mut numbers: Vec<u64> = lines.iter().map(|line| line["seq"].as_u64().unwrap() >> 1).collect();
        numbers.sort_unstable();
        numbers.dedup();
        (pid, numbers)
    });
    by_pid.collect()
}

fn ops(level: &str, wanted: u64) {
    let count = wanted.to_string();
    let Some(job) = Job::start(&["--level", level, "--window-iterations", &count]) else { return };
    File::create(&job.flag).unwrap();
    progress::wait_for_windows(&job.output, 1);
    job.wait_for_calls(6);
    let (folder, ncclflow, window, report, pids) = job.end();
    let iterations = &report["iterations"];
    assert_eq!(
        (&report["closed_by"], &iterations["found"]),
        (&"iterations".into(), &true.into()),
        "{report:#}"
    );
    assert_eq!((&iterations["inferred"], &iterations["period_collectives"]), (&true.into(), &3.into()));
    assert!(iterations["ops_outside"].as_u64().unwrap() > 0);
    let found = numbers(&window);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), pids);
    let first = found[&pids[0]][0];
    assert_eq!(first % 3, 0, "it begins where the workload's iteration does");
    for (pid, numbers) in &found {
        assert!(numbers.iter().copied().eq(first..first + 3 * wanted), "{pid}: {numbers:?}");
    }
    for process in iterations["processes"].as_array().unwrap() {
        assert_eq!((&process["iterations"], &process["period_collectives"]), (&wanted.into(), &3.into()));
    }
    // Whoever reads the recording sees the same.
    let made = folder.path().join("exported");
    exported::lines(&ncclflow, &window, &made);
    assert_eq!(numbers(&made), found);
    let check = Command::new(&ncclflow).arg("check").arg("--json").arg(&window).output().unwrap();
    let check: Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!(check["communicators"][0]["collectives"], 3 * wanted, "{check:#}");
}

#[test]
fn a_window_has_as_many_iterations_as_asked_for() {
    ops("flow", 4);
}

#[test]
fn with_messages_too() {
    ops("steps", 2);
}

#[test]
fn iterations_are_found_by_calls() {
    let Some(job) = Job::start(&["--level", "api", "--window-iterations", "5"]) else { return };
    File::create(&job.flag).unwrap();
    progress::wait_for_windows(&job.output, 1);
    let (_folder, _, window, report, pids) = job.end();
    assert_eq!(report["closed_by"], "iterations", "{report:#}");
    let by_pid = lines(&window, "api");
    assert_eq!(by_pid.keys().copied().collect::<Vec<_>>(), pids);
    for (pid, lines) in by_pid {
        let functions = lines.iter().map(|line| line["function"].as_str().unwrap());
        let functions: Vec<&str> = functions.collect();
        assert_eq!(functions, STEP.repeat(5), "{pid}");
    }
}

#[test]
fn without_iterations_the_window_is_as_long_as_the_flag() {
    // One iteration alone recurs in nothing, however long the window is.
    let once = ["--iters", "1", "--hold-file", "/nonexistent/hold"];
    let Some(mut job) = Job::prepare(&once, &["--window-iterations", "3"]) else { return };
    File::create(&job.flag).unwrap();
    job.recorder.hear("window 1 opened").unwrap();
    job.bed.go().unwrap();
    assert!(job.bed.wait_for_operations().unwrap().ok);
    fs::remove_file(&job.flag).unwrap();
    progress::wait_for_windows(&job.output, 1);
    let (_folder, _, window, report, pids) = job.end();
    let iterations = &report["iterations"];
    assert_eq!((&report["closed_by"], &iterations["found"]), (&"flag".into(), &false.into()), "{report:#}");
    assert!(iterations["why_not"].as_str().unwrap().contains("no sequence"), "{iterations:#}");
    assert_eq!(iterations["ops_outside"], 0);
    assert_eq!(numbers(&window).keys().copied().collect::<Vec<_>>(), pids);
}
