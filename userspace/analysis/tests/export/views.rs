//! What is made for Perfetto, Chakra and NCCL Inspector, as their own readers, or what their documents say,
//! take it apart (`tests/exports/*.py`), against the lines of the same recordings.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use analysis::export::{Choice, ExportOptions, Format, Moment, ViewOptions, export};
use serde_json::Value;
use test_support::need;

use crate::traces::{Recorded, recorded, run};

/// Whether Python has what reads a view.
fn can_read(module: &str, package: &str) -> bool {
    let found =
        Command::new("python3").args(["-c", &format!("import {module}")]).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    need(package, found, "run `cargo xtask test`, which fetches it")
}

pub(crate) fn has_perfetto() -> bool {
    can_read("perfetto.protos.perfetto.trace.perfetto_trace_pb2", "perfetto")
}

pub(crate) fn has_chakra() -> bool {
    can_read("chakra.src.jsonizer.jsonizer", "mlc-chakra")
}

/// Compares a view with lines. Gives what was compared.
pub(crate) fn compare(script: &str, view: &Path, lines: &[PathBuf], arguments: &[&str]) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/exports").join(script);
    let output = Command::new("python3").arg(script).arg(view).args(lines).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(inputs: &[PathBuf], output: &Path, format: Format, choice: Choice) -> String {
    let view = ViewOptions::default();
    let options =
        ExportOptions { inputs: inputs.to_vec(), output: output.to_path_buf(), format, view, choice };
    let error = export(options, &mut |_| ()).unwrap_err();
    if !output.is_dir() {
        assert!(!output.exists(), "a view that was refused leaves nothing");
    }
    format!("{error:#}")
}

/// A recording of the first records of a job, and its lines.
struct World(tempfile::TempDir);

impl World {
    fn new(recorded: &Recorded) -> Self {
        let world = Self(tempfile::tempdir().unwrap());
        recorded.record(&world.path("recorded"), 0..recorded.len());
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn export(&self, format: Format, name: &str, choice: Choice) -> PathBuf {
        run(&[&self.path("recorded")], &self.path(name), format, choice);
        self.path(name)
    }

    fn lines(&self) -> PathBuf {
        self.export(Format::Jsonl, "lines", Choice::default())
    }
}

#[test]
fn perfetto_has_what_was_measured_and_what_was_planned() {
    if !has_perfetto() {
        return;
    }
    for (name, records, is_measured) in [("net_steps", 45_000, true), ("nvlink_flow", 2_000, false)] {
        let world = World::new(&recorded(name).cut_to(records));
        let trace = world.export(Format::Perfetto, "job.pftrace", Choice::default());
        let compared = compare("perfetto_trace.py", &trace, &[world.lines()], &[]);
        let of = |key: &str| compared[key].as_u64().unwrap_or(0);
        assert!(of("processes") == 2 && of("counters") > 2, "{compared}");
        if is_measured {
            assert!(of("messages") > 5000 && of("arrows") > 2000 && of("states") > 5000, "{compared}");
            assert!(of("ops") > 100, "{compared}");
        } else {
            // An op is drawn once, on however many channels it is.
            assert!(of("planned") > 400 && of("messages") == 0, "{compared}");
        }
    }
}

/// Of a part, numbers that are counted from its begin tie nothing together.
#[test]
fn perfetto_of_a_part_is_that_of_its_lines() {
    if !has_perfetto() {
        return;
    }
    let recorded = recorded("net_steps").cut_to(45_000);
    let (first, last) = recorded.span();
    let from = Some(Moment::Wall(first + (last - first) / 4 + recorded.offset()));
    let world = World::new(&recorded);
    let choice = Choice { from, ..Choice::default() };
    let trace = world.export(Format::Perfetto, "job.pftrace", choice.clone());
    let lines = world.export(Format::Jsonl, "part", choice);
    let compared = compare("perfetto_trace.py", &trace, &[lines], &[]);
    // What was measured of this job is in its first seconds.
    assert!(compared["planned"].as_u64().unwrap() > 100, "{compared}");
    // A name with .gz makes the same, compressed.
    let packed = world.export(Format::Perfetto, "job.pftrace.gz", Choice { from, ..Choice::default() });
    let sizes = [&trace, &packed].map(|path| fs::metadata(path).unwrap().len());
    assert!(sizes[1] * 4 < sizes[0], "{sizes:?}");
    let again = compare("perfetto_trace.py", &packed, &[world.path("part")], &[]);
    assert_eq!(again, compared);
}

/// Each process on a host of its own, whose clock began elsewhere: there is one time.
#[test]
fn hosts_are_put_together_by_their_clocks() {
    if !has_perfetto() || !has_chakra() {
        return;
    }
    let recorded = recorded("net_steps").cut_to(30_000);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let pids = recorded.processes();
    let mut lines = Vec::new();
    for (at, pid) in (1u64..).zip(&pids) {
        let name = format!("node-{at}");
        recorded.of_process(*pid, &name, at * 5_000_000_000).record(&path(&name), 0..usize::MAX);
        run(&[&path(&name)], &path(&format!("{name}.lines")), Format::Jsonl, Choice::default());
        lines.push(path(&format!("{name}.lines")));
    }
    assert_eq!(lines.len(), 2);
    let inputs = [path("node-1"), path("node-2")];
    let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
    let exported = run(&inputs, &path("job.pftrace"), Format::Perfetto, Choice::default());
    assert!(exported.twice.is_empty(), "{:?}", exported.twice);
    let compared = compare("perfetto_trace.py", &path("job.pftrace"), &lines, &[]);
    assert!(compared["arrows"].as_u64().unwrap() > 1000 && compared["processes"] == 2, "{compared}");
    let trace = fs::read(path("job.pftrace")).unwrap();
    for host in ["node-1", "node-2"] {
        assert!(memchr::memmem::find(&trace, host.as_bytes()).is_some(), "{host}");
    }
    run(&inputs, &path("et"), Format::Chakra, Choice::default());
    let compared = compare("chakra_traces.py", &path("et"), &lines, &["--cut"]);
    assert_eq!(compared["ranks"], 2, "{compared}");
    // One of the two alone: nobody knows which rank of the job its peers are.
    let said = refused(&[path("node-1")], &path("half"), Format::Chakra, Choice::default());
    assert!(said.contains("give the recordings of all hosts"), "{said}");
}

#[test]
fn chakra_has_the_ops_and_their_order() {
    if !has_chakra() {
        return;
    }
    for (name, records) in [("net_steps", usize::MAX), ("nvlink_flow", 6_000)] {
        let recorded = recorded(name).cut_to(records);
        let world = World::new(&recorded);
        let traces = world.export(Format::Chakra, "et", Choice::default());
        let cut: &[&str] = if records == usize::MAX { &[] } else { &["--cut"] };
        let compared = compare("chakra_traces.py", &traces, &[world.lines()], cut);
        let of = |key: &str| compared[key].as_u64().unwrap_or(0);
        assert!(of("COMM_COLL_NODE") > 100 && of("COMM_SEND_NODE") > 10 && of("groups") == 2, "{compared}");
        assert!(of("dependencies") > of("nodes") / 2, "{compared}");
    }
}

#[test]
fn inspector_has_ops_and_proxy_steps() {
    for (name, records, is_measured) in [("net_steps", 45_000, true), ("nvlink_flow", 2_000, false)] {
        let world = World::new(&recorded(name).cut_to(records));
        let logs = world.export(Format::Inspector, "logs", Choice::default());
        let compared = compare("inspector_records.py", &logs, &[world.lines()], &[]);
        let of = |key: &str| compared[key].as_u64().unwrap_or(0);
        assert!(of("ops") > 100, "{compared}");
        assert_eq!((of("steps") > 5000, of("timed") > 50), (is_measured, is_measured), "{compared}");
    }
}

/// What is there stays, and a recording that has nothing for a view is refused with what would have it.
#[test]
fn views_refuse_what_they_cannot_do() {
    let recorded = recorded("net_steps").cut_to(2_000);
    let world = World::new(&recorded);
    let inputs = [world.path("recorded")];
    fs::write(world.path("precious"), "mine").unwrap();
    let said = |output: &str, format| {
        let options = ExportOptions {
            inputs: inputs.to_vec(),
            output: world.path(output),
            format,
            view: ViewOptions::default(),
            choice: Choice::default(),
        };
        format!("{:#}", export(options, &mut |_| ()).unwrap_err())
    };
    assert!(said("precious", Format::Perfetto).contains("exists"), "{}", said("precious", Format::Perfetto));
    assert_eq!(fs::read_to_string(world.path("precious")).unwrap(), "mine");
    assert!(said("precious/job.pftrace", Format::Perfetto).contains("precious"));
    fs::create_dir(world.path("full")).unwrap();
    fs::write(world.path("full/precious"), "mine").unwrap();
    for format in [Format::Chakra, Format::Inspector] {
        assert!(said("full", format).contains("not empty"));
    }
    // The same ranks twice.
    recorded.record(&world.path("again"), 0..recorded.len());
    let both = [world.path("recorded"), world.path("again")];
    let twice = refused(&both, &world.path("et"), Format::Chakra, Choice::default());
    assert!(twice.contains("was recorded twice"), "{twice}");
    assert!(!world.path("et").exists());
    // Nothing is left of a trace that was not completed.
    let names: Vec<_> =
        fs::read_dir(world.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().ends_with(".part")), "{names:?}");
}

/// A recording that is cut and damaged is exported as far as it can be read.
#[test]
fn damaged_recordings_are_exported_as_far_as_they_are_whole() {
    if !has_perfetto() || !has_chakra() {
        return;
    }
    let world = World::new(&recorded("net_steps").cut_to(45_000));
    let segment = world.path("recorded/recording/000001.nfr");
    let mut bytes = fs::read(&segment).unwrap();
    bytes.truncate(bytes.len() * 3 / 4);
    let middle = bytes.len() / 2;
    bytes[middle..middle + 100].fill(0x55);
    fs::write(&segment, &bytes).unwrap();
    let lines = world.lines();
    let trace = world.export(Format::Perfetto, "job.pftrace", Choice::default());
    let compared = compare("perfetto_trace.py", &trace, std::slice::from_ref(&lines), &[]);
    assert!(compared["messages"].as_u64().unwrap() > 500, "{compared}");
    let logs = world.export(Format::Inspector, "logs", Choice::default());
    let _ = compare("inspector_records.py", &logs, std::slice::from_ref(&lines), &[]);
    let traces = world.export(Format::Chakra, "et", Choice::default());
    let _ = compare("chakra_traces.py", &traces, &[lines], &["--cut"]);
}
