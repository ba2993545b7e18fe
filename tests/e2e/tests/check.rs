//! `ncclflow check`: it finds nothing where nothing is wrong, and names what is.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use ncclflow_e2e::harness::{
    bed::Bed,
    programs, progress,
    recorder::Recorder,
    traced_run::{Plugin, TracedRun},
};
use serde_json::{Value, json};
use test_support::root;

const CONSISTENT: i32 = 0;
const FINDINGS: i32 = 3;

/// So many jobs are judged until one is judged right: the machine can keep any rank from running, for longer than a test
/// waits or stalls another one. What is judged wrong is so each time.
const ATTEMPTS: usize = 3;

/// Longest time that a job is made to stand.
const LONGEST: Duration = Duration::from_mins(1);

/// The exit code and the report on these folders.
fn check(dirs: &[&Path]) -> (i32, Value) {
    let output =
        Command::new(programs::ncclflow().unwrap()).arg("check").arg("--json").args(dirs).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (
        output.status.code().unwrap(),
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}")),
    )
}

fn kinds(report: &Value) -> Vec<&str> {
    let communicators = report["communicators"].as_array().unwrap().iter();
    communicators
        .flat_map(|communicator| communicator["findings"].as_array().unwrap())
        .map(|finding| finding["kind"].as_str().unwrap())
        .collect()
}

/// Everything that is not about speed, which the machine's load decides here.
fn without_slowest<'a>(kinds: &[&'a str]) -> Vec<&'a str> {
    kinds.iter().copied().filter(|kind| *kind != "slowest").collect()
}

/// All operations, two communicators, groups: nothing is wrong.
#[test]
fn a_sound_job_is_consistent() {
    for (version, plugin) in [("2.21.5-cu12", Plugin::No), ("2.32.3-cu12", Plugin::No)] {
        let arguments = [
            "--ranks",
            "4",
            "--mode",
            "processes",
            "--ops",
            "allreduce,allgather,broadcast,sendrecv,alltoall",
            "--bytes",
            "65536",
            "--iters",
            "3",
            "--comms",
            "2",
            "--group",
            "2",
        ];
        let Some(run) = TracedRun::traced(&["--level", "steps"], version, plugin, &arguments) else { return };
        let (code, report) = check(&[&run.folder().join("out")]);
        assert_eq!(without_slowest(&kinds(&report)), [""; 0], "{report:#}");
        assert_eq!(report["communicators"].as_array().unwrap().len(), 2);
        for communicator in report["communicators"].as_array().unwrap() {
            assert_eq!(communicator["ranks"].as_array().unwrap().len(), 4);
            let measured = communicator["measured"].as_object().unwrap();
            assert!(
                measured.keys().all(|outcome| outcome == "as_planned") && !measured.is_empty(),
                "{measured:?}"
            );
        }
        // Which rank is slowest the machine's load decides; that one is a finding.
        assert!([CONSISTENT, FINDINGS].contains(&code), "{code}");
    }
}

/// Without times nothing can be slow, so that the machine's load has no part in the exit code.
#[test]
fn a_sound_job_without_times_ends_with_0() {
    let arguments = ["--ranks", "2", "--mode", "processes", "--ops", "allreduce,sendrecv", "--iters", "3"];
    let Some(run) = TracedRun::traced(&["--level", "flow"], "2.27.5-cu12", Plugin::No, &arguments) else {
        return;
    };
    let (code, report) = check(&[&run.folder().join("out")]);
    assert_eq!(kinds(&report), [""; 0], "{report:#}");
    assert_eq!(report["communicators"][0]["ranks"].as_array().unwrap().len(), 2, "{report:#}");
    assert_eq!(code, CONSISTENT, "{report:#}");
}

/// What runs while a job is watched that does not end well.
struct Watched {
    folder: tempfile::TempDir,
}

impl Watched {
    /// Records a job of four ranks, which logs its calls to `calls`, until `meanwhile` is done; it is told the folder once
    /// the job runs.
    fn new(
        version: &str,
        options: &[&str],
        arguments: &[&str],
        meanwhile: impl FnOnce(&Path, &mut Bed),
    ) -> Option<Self> {
        let (ncclflow, bed, library) = (programs::ncclflow()?, programs::bed()?, programs::nccl(version)?);
        if !root() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let arguments: Vec<String> = arguments
            .iter()
            .map(|argument| argument.replace("FOLDER", &folder.path().display().to_string()))
            .collect();
        let calls = folder.path().join("calls").display().to_string();
        let mut all = vec!["--ranks", "4", "--mode", "processes", "--channels", "2", "--call-log", &calls];
        all.extend(arguments.iter().map(String::as_str));
        let mut bed = Bed::start(&bed, &library, folder.path(), &all).unwrap();
        let recorder =
            Recorder::start(&ncclflow, &bed.pid_list(), &folder.path().join("out"), options).unwrap();
        bed.go().unwrap();
        meanwhile(folder.path(), &mut bed);
        recorder.interrupt().unwrap();
        Some(Self { folder })
    }

    fn check(&self) -> (i32, Value) {
        check(&[&self.folder.path().join("out")])
    }
}

/// Judges jobs until `is_right` with the exit code and the report. `watch` gives none if the machine lacks something.
fn expect(what: &str, watch: impl Fn() -> Option<Watched>, is_right: impl Fn(i32, &Value) -> bool) {
    let mut wrong = Vec::new();
    while wrong.len() < ATTEMPTS {
        let Some(watched) = watch() else { return };
        let (code, report) = watched.check();
        if is_right(code, &report) {
            return;
        }
        wrong.push(format!("{code} {report:#}"));
    }
    panic!("{what}: {}", wrong.join("\n"));
}

/// A rank whose GPU stands still is the culprit, and the others are its victims, whether it goes on or not.
fn names_the_stalled_rank(algo: &str, goes_on: bool) {
    let versions = [("2.21.5-cu12", 2), ("2.32.3-cu12", 3), ("2.27.5-cu12", 2), ("2.28.9-cu13", 1)];
    for (version, stalled) in versions.into_iter().take(if goes_on { 4 } else { 2 }) {
        let stall = format!("{stalled}=FOLDER/stall");
        let arguments = ["--algo", algo, "--bytes", "262144", "--iters", "4000", "--sync", "--stall", &stall];
        let meanwhile = |folder: &Path, bed: &mut Bed| {
            let (calls, stall) = (folder.join("calls"), folder.join("stall"));
            // Some operations first; then a stall that is long against all of them.
            let begun = Instant::now();
            progress::wait_for_calls(&calls, &bed.ready.pids, 10);
            File::create(&stall).unwrap();
            thread::sleep((begun.elapsed() * 5).clamp(Duration::from_millis(3500), LONGEST));
            if goes_on {
                fs::remove_file(&stall).unwrap();
                progress::wait_for_calls(&calls, &bed.ready.pids, 10);
            }
        };
        let watch = || Watched::new(version, &["--level", "steps"], &arguments, meanwhile);
        let others: Vec<i64> = (0..4).filter(|rank| *rank != stalled).collect();
        expect(&format!("{version} {algo}"), watch, |code, report| {
            let culprit = &report["communicators"][0]["verdict"]["culprit"];
            let mut victims: Vec<i64> =
                culprit["victims"].as_array().into_iter().flatten().filter_map(Value::as_i64).collect();
            victims.sort_unstable();
            (code, &culprit["rank"], &culprit["reason"]) == (FINDINGS, &stalled.into(), &"own_gpu".into())
                && victims == others
        });
    }
}

#[test]
fn a_stalled_rank_of_a_ring_is_named() {
    names_the_stalled_rank("ring", true);
}

#[test]
fn a_stalled_rank_of_a_ring_that_hangs_is_named() {
    names_the_stalled_rank("ring", false);
}

#[test]
fn a_stalled_rank_of_a_tree_is_named() {
    names_the_stalled_rank("tree", true);
}

#[test]
fn a_stalled_rank_of_a_tree_that_hangs_is_named() {
    names_the_stalled_rank("tree", false);
}

/// A rank that does not come: the others wait for it.
#[test]
fn a_rank_that_has_not_joined_is_named() {
    for version in ["2.21.5-cu12", "2.32.3-cu12"] {
        let arguments = ["--bytes", "65536", "--iters", "8", "--sync", "--absent", "1@4"];
        let meanwhile = |folder: &Path, bed: &mut Bed| {
            let (counts, begun) = (bed.ready.pids.iter().copied().zip([5, 4, 5, 5]), Instant::now());
            progress::wait_for_calls_of("ncclAllReduce", &folder.join("calls"), &counts.collect::<Vec<_>>());
            // A rank that was watched for a second longer has not joined. It is late where others have waited for it ten
            // times as long as it was at work.
            thread::sleep((begun.elapsed() * 15).clamp(Duration::from_secs(2), LONGEST));
        };
        let watch = || Watched::new(version, &["--level", "steps"], &arguments, meanwhile);
        expect(version, watch, |code, report| {
            let communicator = &report["communicators"][0];
            let findings = communicator["findings"].as_array().unwrap();
            let missing: Vec<_> = findings
                .iter()
                .filter(|finding| finding["kind"] == "missing_join")
                .map(|finding| (&finding["ranks"], &finding["seq"]))
                .collect();
            let culprit = &communicator["verdict"]["culprit"];
            code == FINDINGS
                && missing == [(&json!([1]), &json!(8))]
                && (&culprit["rank"], &culprit["reason"]) == (&json!(1), &json!("late"))
        });
    }
}

/// Another size on one rank; two operations in the other order.
#[test]
fn what_differs_between_ranks_is_named() {
    for (arguments, kind) in [
        (["--ops", "allreduce", "--size-of", "2=32768@3"], "collective_mismatch"),
        (["--ops", "allreduce,allgather", "--swap", "2@2"], "order_mismatch"),
    ] {
        let mut all = vec!["--bytes", "65536", "--iters", "6", "--sync"];
        all.extend(arguments);
        // In all, each rank sends and receives as many messages as without it, and so the job ends.
        let watched = Watched::new("2.27.5-cu12", &[], &all, |_, bed| assert!(bed.finish().unwrap().1.ok));
        let Some(watched) = watched else { return };
        let (code, report) = watched.check();
        assert_eq!(code, FINDINGS);
        let finding = &report["communicators"][0]["findings"][0];
        assert_eq!((&finding["kind"], &finding["ranks"]), (&kind.into(), &json!([2])), "{report:#}");
    }
}

/// What is no recording is an error.
#[test]
fn a_folder_without_a_recording_is_an_error() {
    let Some(ncclflow) = programs::ncclflow() else { return };
    let empty = tempfile::tempdir().unwrap();
    let output = Command::new(ncclflow).arg("check").arg(empty.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("has no recording") && said.contains("`recording/`"), "{said}");
}
