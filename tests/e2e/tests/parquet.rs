//! `ncclflow export -f parquet`: an independent reader sees in the tables what the lines say, row by row, and the shipped queries give
//! what a small program computes from the lines.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path, process::Command};

use ncclflow_e2e::harness::{
    bed::Bed,
    programs, progress,
    recorder::Recorder,
    tables,
    traced_run::{Plugin, TracedRun},
};
use test_support::root;

/// The rows of one kind that were compared.
fn rows(compared: &serde_json::Value, kind: &str) -> u64 {
    compared[kind].as_u64().unwrap()
}

#[test]
fn ops_messages_and_links_are_those_of_the_lines() {
    if !tables::can_read() {
        return;
    }
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
        "20",
        "--comms",
        "2",
    ];
    let Some(run) = TracedRun::traced(&["--level", "steps"], "2.27.5-cu12", Plugin::No, &arguments) else {
        return;
    };
    let (out, folder) = (run.folder().join("out"), run.folder().join("tables"));
    let said = tables::export(&[&out], &folder);
    assert!(said.contains("Parquet files"), "{said}");
    let compared = tables::compare(&folder, &[&out], &[]);
    for kind in ["ops", "messages", "links", "delays", "late_ranks", "iterations"] {
        assert!(rows(&compared, kind) >= 4, "{kind}: {compared}");
    }
    assert_eq!(rows(&compared, "first_difference"), 0, "{compared}");
    // A killed export leaves nothing that a reader would take for a table.
    assert!(hidden(&folder).is_empty(), "{:?}", hidden(&folder));
}

#[test]
fn calls_are_those_of_the_lines() {
    if !tables::can_read() {
        return;
    }
    let arguments =
        ["--ranks", "2", "--ops", "allreduce,sendrecv", "--bytes", "4096", "--iters", "5", "--group", "2"];
    let options = ["--level", "api", "--returns"];
    let Some(run) = TracedRun::traced(&options, "2.27.5-cu12", Plugin::No, &arguments) else { return };
    let (out, folder) = (run.folder().join("out"), run.folder().join("tables"));
    let _ = tables::export(&[&out], &folder);
    let compared = tables::compare(&folder, &[&out], &[]);
    assert!(rows(&compared, "calls") > 20 && rows(&compared, "ops") == 0, "{compared}");
}

/// The end of the committed recordings: real jobs, one of which measured nothing.
#[test]
fn tables_of_real_jobs_are_those_of_their_lines() {
    let Some(ncclflow) = programs::ncclflow().filter(|_| tables::can_read()) else { return };
    // What DuckDB gives is compared in Python: some ten thousand rows of each take seconds.
    for (name, part, measured) in [("nvlink_flow", "0.05s", false), ("net_steps", "2.5s", true)] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces").join(name);
        let export = |arguments: &[&str], output: &str| {
            let mut export = Command::new(&ncclflow);
            export.arg("export").arg(&recording).args(["--last", part, "-f"]).args(arguments);
            let done = export.arg("-o").arg(path(output)).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            String::from_utf8(done.stdout).unwrap()
        };
        export(&["jsonl"], "lines");
        export(&["parquet", "--planned-messages"], "all");
        let said = export(&["parquet"], "tables");
        assert_eq!(said.contains("planned and not measured"), !measured, "{said}");
        // The sums by link are those of all messages, whether these have rows or not.
        for (tables, arguments) in [("all", &["--planned-messages"][..]), ("tables", &[])] {
            let compared = tables::compare(&path(tables), &[&path("lines")], arguments);
            assert!(rows(&compared, "ops") > 100 && rows(&compared, "messages") > 5000, "{compared}");
            assert_eq!(rows(&compared, "delays") > 0, measured, "{compared}");
        }
    }
}

/// Another size on one rank, from its fourth call on: the query names that collective.
#[test]
fn the_first_difference_is_where_it_was_made() {
    let arguments = ["--ranks", "4", "--iters", "6", "--sync", "--size-of", "2=32768@3"];
    // The other size takes as many messages, and so the job ends.
    let to_the_end = |_: &Path, bed: &mut Bed| assert!(bed.finish().unwrap().1.ok);
    let Some(recorded) = Recorded::new(&[], &arguments, to_the_end) else { return };
    let (out, folder) = (recorded.path("out"), recorded.path("tables"));
    let _ = tables::export(&[&out], &folder);
    let compared = tables::compare(&folder, &[&out], &["--expect-difference", "6"]);
    assert!(rows(&compared, "first_difference") >= 2, "{compared}");
}

/// Several recordings become one set of tables.
#[test]
fn windows_stand_side_by_side() {
    let arguments = ["--ranks", "2", "--iters", "1000000", "--interval-ms", "1", "--sync"];
    let Some(recorded) = Recorded::new(&["--rotate", "1"], &arguments, |folder, bed| {
        // As many as are asked for below; and two windows, and some of a third.
        progress::wait_for_calls(&folder.join("calls"), &bed.ready.pids, 200);
        progress::wait_for_windows(&folder.join("out"), 2);
    }) else {
        return;
    };
    let (out, folder) = (recorded.path("out"), recorded.path("tables"));
    let said = tables::export(&[&out], &folder);
    let windows: Vec<_> = fs::read_dir(&out)
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    assert!(windows.len() >= 2, "{windows:?}");
    let lines: Vec<&Path> = windows.iter().map(std::path::PathBuf::as_path).collect();
    let compared = tables::compare(&folder, &lines, &[]);
    assert!(rows(&compared, "ops") > 100, "{compared} {said}");
}

struct Recorded {
    folder: tempfile::TempDir,
}

impl Recorded {
    /// Records a job, which logs its calls to `calls`, until `meanwhile` is done; it is told the folder once the job runs.
    fn new(options: &[&str], arguments: &[&str], meanwhile: impl FnOnce(&Path, &mut Bed)) -> Option<Self> {
        let (ncclflow, bed) = (programs::ncclflow()?, programs::bed()?);
        let library = programs::nccl("2.27.5-cu12")?;
        if !tables::can_read() || !root() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let calls = folder.path().join("calls").display().to_string();
        let fixed = ["--mode", "processes", "--bytes", "65536", "--call-log", &calls];
        let all = [&fixed[..], arguments].concat();
        let mut bed = Bed::start(&bed, &library, folder.path(), &all).unwrap();
        let recorder =
            Recorder::start(&ncclflow, &bed.pid_list(), &folder.path().join("out"), options).unwrap();
        bed.go().unwrap();
        meanwhile(folder.path(), &mut bed);
        recorder.interrupt().unwrap();
        Some(Self { folder })
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }
}

/// Files below that are not complete.
fn hidden(folder: &Path) -> Vec<std::path::PathBuf> {
    let files = ncclflow_e2e::harness::exported::files_below(folder).into_keys();
    files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with('.')).collect()
}
