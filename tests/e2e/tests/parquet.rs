//! `ncclflow export -f parquet`: an independent reader sees in the tables what the lines say, row by row, and the shipped queries give
//! what a small program computes from the lines.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::{
    prelude::*,
    tables,
    traced_run::{Plugin, TracedRun},
};

/// The rows of one kind that were compared.
fn rows(compared: &Value, kind: &str) -> u64 {
    number(&compared[kind])
}

#[test]
fn ops_messages_and_links_are_those_of_the_lines() {
    if !tables::can_read() {
        return;
    }
    let workload = "--ranks 4 --mode processes --ops allreduce,allgather,broadcast,sendrecv,alltoall \
         --bytes 65536 --iters 20 --comms 2";
    let Some(run) = TracedRun::new("--level steps", "2.27.5-cu12", Plugin::No, workload) else { return };
    let (out, folder) = (run.out(), run.folder().join("tables"));
    let said = tables::export(&[&out], &folder);
    assert!(said.contains("Parquet files"), "{said}");
    let compared = tables::compare(&folder, &[&out], &[]);
    for kind in [
        "ops",
        "messages",
        "links",
        "delays",
        "late_ranks",
        "launch",
        "iteration",
        "iterations",
        "waited_for",
        "pairs",
        "nics",
    ] {
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
    let workload = "--ranks 2 --ops allreduce,sendrecv --bytes 4096 --iters 5 --group 2";
    let options = "--level api --returns";
    let Some(run) = TracedRun::new(options, "2.27.5-cu12", Plugin::No, workload) else { return };
    let (out, folder) = (run.out(), run.folder().join("tables"));
    let _ = tables::export(&[&out], &folder);
    let compared = tables::compare(&folder, &[&out], &[]);
    assert!(rows(&compared, "calls") > 20 && rows(&compared, "ops") == 0, "{compared}");
}

/// The end of the committed recordings: real jobs, one of which measured nothing.
#[test]
fn tables_of_real_jobs_are_those_of_their_lines() {
    if programs::ncclflow().is_none() || !tables::can_read() {
        return;
    }
    // What DuckDB gives is compared in Python: some ten thousand rows of each take seconds.
    for (name, part, measured) in [("nvlink_flow", "0.05s", false), ("net_steps", "2.5s", true)] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces").join(name);
        let export = |options: &str, output: &str| {
            let words = format!("export --last {part} -f {options} -o");
            ncclflow_of(&words, &[path(output), recording.clone()]).ok().stdout
        };
        export("jsonl", "lines");
        export("parquet --planned-messages", "all");
        let said = export("parquet", "tables");
        assert_eq!(said.contains("planned and not measured"), !measured, "{said}");
        // The sums by link are those of all messages, whether these have rows or not.
        for (tables, arguments) in [("all", &["--planned-messages"][..]), ("tables", &[])] {
            let compared = tables::compare(&path(tables), &[&path("lines")], arguments);
            assert!(rows(&compared, "ops") > 100 && rows(&compared, "messages") > 5000, "{compared}");
            assert_eq!(rows(&compared, "delays") > 0, measured, "{compared}");
        }
    }
}

/// Real jobs of which the ranks' own log says how long an iteration took, and which host was late.
#[test]
fn iterations_of_real_jobs_are_as_long_as_their_ranks_noted() {
    if programs::ncclflow().is_none() || !tables::can_read() {
        return;
    }
    for (job, late, part) in [("host", "2", "150ms"), ("gc", "1", "250ms")] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces/slow").join(job);
        for (format, output) in [("jsonl", "lines"), ("parquet", "tables")] {
            let words = format!("export --last {part} -f {format} -o");
            let _ = ncclflow_of(&words, &[path(output), recording.clone()]).ok();
        }
        let compared = tables::compare(&path("tables"), &[&path("lines")], &["--expect-waited-for", late]);
        // Each rank runs eight all-reduces of one size in an iteration.
        let (launches, iterations) = (rows(&compared, "launch"), rows(&compared, "iteration"));
        assert!(iterations >= 60 && launches >= 8 * iterations, "{job}: {compared}");
        assert!(launches < 9 * (iterations + 8), "{job}: {compared}");
    }
}

/// Another size on one rank, from its fourth call on: the query names that collective.
#[test]
fn the_first_difference_is_where_it_was_made() {
    // The other size takes as many messages, and so the job ends.
    let to_the_end = |world: &mut World| world.bed.end();
    let workload = "--ranks 4 --iters 6 --sync --size-of 2=32768@3";
    let Some(world) = recorded("", workload, to_the_end) else { return };
    let (out, folder) = (world.out(), world.path("tables"));
    let _ = tables::export(&[&out], &folder);
    let compared = tables::compare(&folder, &[&out], &["--expect-difference", "6"]);
    assert!(rows(&compared, "first_difference") >= 2, "{compared}");
}

/// Several recordings become one set of tables.
#[test]
fn windows_stand_side_by_side() {
    let workload = "--ranks 2 --iters 1000000 --interval-ms 1 --sync";
    let Some(world) = recorded("--rotate 1", workload, |world| {
        // As many as are asked for below; and two windows, and some of a third.
        world.wait_for_calls(200);
        progress::wait_for_windows(&world.out(), 2);
    }) else {
        return;
    };
    let (out, folder) = (world.out(), world.path("tables"));
    let said = tables::export(&[&out], &folder);
    let entries = fs::read_dir(&out).unwrap().flatten().map(|entry| entry.path());
    let windows: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    assert!(windows.len() >= 2, "{windows:?}");
    let lines: Vec<&Path> = windows.iter().map(PathBuf::as_path).collect();
    let compared = tables::compare(&folder, &lines, &[]);
    assert!(rows(&compared, "ops") > 100, "{compared} {said}");
}

/// Records a job, which logs its calls, until `meanwhile` is done.
fn recorded(options: &str, workload: &str, meanwhile: impl FnOnce(&mut World)) -> Option<World> {
    if !tables::can_read() {
        return None;
    }
    let workload = format!("--mode processes --bytes 65536 {CALL_LOG} {workload}");
    let mut world = World::start("2.27.5-cu12", &workload)?;
    world.record_while(options, meanwhile);
    Some(world)
}

/// Files below that are not complete.
fn hidden(folder: &Path) -> Vec<PathBuf> {
    let files = exported::files_below(folder).into_keys();
    files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with('.')).collect()
}
