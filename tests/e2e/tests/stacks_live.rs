//! Python's call stacks of running programs, against what the program itself wrote down at each call.
//!
//! The program calls the real NCCL, with a communicator that is none: each call comes to `ncclEnqueueCheck`, and
//! `count` says which call it is. No GPU is needed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use ncclflow_e2e::harness::{programs, recorder::Recorder, replay};
use serde_json::Value;
use test_support::{Interpreter, need_pythons, root};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/stacks.py");

/// Calls of one run, at least.
const CALLS: usize = 10_000;

/// A frame: function, file, line.
type Frame = (String, String, u64);

/// What the program says of one call.
struct Called {
    tid: u64,
    kind: String,
    frames: Vec<Frame>,
}

struct Program {
    child: Child,
    out: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    /// Starts it, and waits until it is ready.
    fn start(python: &Path, library: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(python)
            .arg(PROGRAM)
            .arg(library)
            .args([folder.path().join("truth"), folder.path().join("go")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "{line}");
        Self { child, out, folder }
    }

    /// Lets it go, and waits for its end. Gives what it says of its calls, by their numbers.
    fn run(&mut self) -> BTreeMap<u64, Called> {
        File::create(self.folder.path().join("go")).unwrap();
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        let text = fs::read_to_string(self.folder.path().join("truth")).unwrap();
        let called = text.lines().map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let frame = |frame: &Value| {
                let text = |at: usize| frame[at].as_str().unwrap().to_owned();
                (text(0), text(1), frame[2].as_u64().unwrap())
            };
            let frames = line["frames"].as_array().unwrap().iter().map(frame).collect();
            let (tid, kind) = (line["tid"].as_u64().unwrap(), line["kind"].as_str().unwrap().to_owned());
            (line["n"].as_u64().unwrap(), Called { tid, kind, frames })
        });
        called.collect()
    }
}

/// What a recording says: its calls by their numbers, with thread and stack.
struct Recorded {
    calls: HashMap<u64, (u64, Option<String>)>,
    stacks: HashMap<String, Value>,
}

impl Recorded {
    fn read(folder: &Path) -> Self {
        let lines = |path: &Path| -> Vec<Value> {
            let text = fs::read_to_string(path).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let mut calls = HashMap::new();
        for file in fs::read_dir(folder.join("processes")).unwrap().map(Result::unwrap) {
            for row in lines(&file.path()) {
                let stack = row["stack"].as_str().map(str::to_owned);
                calls.insert(row["count"].as_u64().unwrap(), (row["tid"].as_u64().unwrap(), stack));
            }
        }
        let stacks = lines(&folder.join("stacks.jsonl"));
        let stacks = stacks.into_iter().map(|row| (row["stack"].as_str().unwrap().to_owned(), row)).collect();
        Self { calls, stacks }
    }
}

/// Frames of a stack, outermost first; `None`: what is not known.
fn frames(stack: &Value) -> Vec<Option<Frame>> {
    let frame = |frame: &Value| {
        let function = frame["function"].as_str().unwrap();
        let known = (function.to_owned(), frame["file"].as_str()?.to_owned(), frame["line"].as_u64()?);
        (function != "?").then_some(known)
    };
    stack["frames"].as_array().unwrap().iter().map(frame).collect()
}

/// Compares every call. Frames of code that is dropped at once may be unknown, and are counted.
fn compare(version: &str, truth: &BTreeMap<u64, Called>, recorded: &Recorded, depth: usize) -> usize {
    assert!(truth.len() >= CALLS, "{version}: only {} calls", truth.len());
    let (mut different, mut unknown) = (Vec::new(), 0);
    for (number, called) in truth {
        let Some((tid, stack)) = recorded.calls.get(number) else {
            different.push(format!("call {number} is not there"));
            continue;
        };
        let outer = called.frames.len().saturating_sub(depth);
        let expected = &called.frames[outer..];
        let Some(row) = stack.as_ref().and_then(|stack| recorded.stacks.get(stack)) else {
            different.push(format!("call {number} ({}) has no stack: {stack:?}", called.kind));
            continue;
        };
        let found = frames(row);
        let is_right = |(found, expected): (&Option<Frame>, &Frame)| {
            found
                .as_ref()
                .map_or(called.kind == "dropped" && expected.1 == "made.py", |found| found == expected)
        };
        unknown += usize::from(found.iter().any(Option::is_none));
        if *tid != called.tid
            || row["cut"] != (outer > 0)
            || found.len() != expected.len()
            || !found.iter().zip(expected).all(is_right)
        {
            different.push(format!(
                "call {number} ({}) of thread {} in {tid}: {row}\n  but {expected:?}",
                called.kind, called.tid
            ));
        }
    }
    let shown = different.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(different.is_empty(), "{version}: {} of {} calls differ:\n{shown}", different.len(), truth.len());
    unknown
}

/// Records one run of the program.
fn record(python: &Path, library: &Path, options: &[&str]) -> (BTreeMap<u64, Called>, tempfile::TempDir) {
    let ncclflow = programs::ncclflow().unwrap();
    let mut program = Program::start(python, library);
    let out = tempfile::tempdir().unwrap();
    let options = [&["--strict", "--level", "api", "--stacks"], options].concat();
    let pid = program.child.id().to_string();
    let recorder = Recorder::start(&ncclflow, &pid, &out.path().join("out"), &options).unwrap();
    let truth = program.run();
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success(), "{said}");
    (truth, out)
}

fn prepared() -> Option<(Vec<Interpreter>, PathBuf)> {
    let library = programs::nccl("2.27.5-cu12")?;
    programs::ncclflow()?;
    let pythons = need_pythons()?;
    root().then_some((pythons, library))
}

#[test]
fn every_call_has_the_stack_that_the_program_itself_knows() {
    let Some((pythons, library)) = prepared() else { return };
    for python in &pythons {
        let version = python.release.as_str();
        let (truth, out) = record(&python.program, &library, &[]);
        let folder = out.path().join("out");
        let recorded = Recorded::read(&folder);
        let unknown = compare(version, &truth, &recorded, 24);
        eprintln!(
            "{version}: {} calls, {} stacks, {unknown} with code that was dropped at once and is not known",
            truth.len(),
            recorded.stacks.len()
        );
        let session: Value =
            serde_json::from_str(&fs::read_to_string(folder.join("session.json")).unwrap()).unwrap();
        let said = session["targets"][0]["python"].as_str().unwrap();
        assert!(said.starts_with(&format!("3.{}", python.minor)), "{said} {version}");
        // The recording has it all.
        replay::check(&programs::ncclflow().unwrap(), &folder, &folder);
    }
}

#[test]
fn the_depth_is_what_was_asked_for() {
    let Some((pythons, library)) = prepared() else { return };
    let python = pythons.last().unwrap();
    for depth in [1, 48] {
        let (truth, out) = record(&python.program, &library, &["--stack-depth", &depth.to_string()]);
        compare(&python.release, &truth, &Recorded::read(&out.path().join("out")), depth);
    }
}

/// `stacks` counts what the program called, live and out of a recording.
#[test]
fn stacks_are_counted() {
    let Some((pythons, library)) = prepared() else { return };
    let ncclflow = programs::ncclflow().unwrap();
    let python = &pythons.first().unwrap().program;
    let expected = |truth: &BTreeMap<u64, Called>| {
        let mut counts: BTreeMap<Vec<Frame>, u64> = BTreeMap::new();
        for called in truth.values().filter(|called| called.kind != "dropped") {
            let outer = called.frames.len().saturating_sub(24);
            *counts.entry(called.frames[outer..].to_vec()).or_default() += 1;
        }
        counts
    };
    let counted = |text: &[u8]| {
        let found: Value = serde_json::from_slice(text).unwrap();
        let mut counts: BTreeMap<Vec<Frame>, u64> = BTreeMap::new();
        for group in found["groups"].as_array().unwrap() {
            assert_eq!(group["function"], "AllReduce");
            let Some(known) = frames(group).into_iter().collect::<Option<Vec<_>>>() else { continue };
            if !known.iter().any(|frame| frame.1 == "made.py" && frame.0.as_str() >= "made_006") {
                *counts.entry(known).or_default() += group["count"].as_u64().unwrap();
            }
        }
        counts
    };
    let (truth, out) = record(python, &library, &[]);
    let folder = out.path().join("out");
    let run = Command::new(&ncclflow).arg("stacks").arg(&folder).arg("--json").output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(counted(&run.stdout), expected(&truth));

    let mut program = Program::start(python, &library);
    let mut live = Command::new(&ncclflow)
        .args(["stacks", "--json", "-p", &program.child.id().to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(live.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("watching with") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended");
    }
    let truth = program.run();
    let output = live.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(counted(&output.stdout), expected(&truth));
    let folded = Command::new(&ncclflow).arg("stacks").arg(&folder).arg("--folded").output().unwrap();
    let text = String::from_utf8(folded.stdout).unwrap();
    let of_lines: u64 =
        text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(of_lines, truth.len() as u64);
    let innermost: BTreeSet<_> = text
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap().0.rsplit_once(';').unwrap().1.to_owned())
        .collect();
    assert_eq!(innermost, BTreeSet::from(["ncclAllReduce".to_owned()]));
}

/// Nothing is loaded, walked or sent where stacks are not asked for.
#[test]
fn without_stacks_there_are_none() {
    let Some((pythons, library)) = prepared() else { return };
    let python = &pythons.last().unwrap().program;
    let ncclflow = programs::ncclflow().unwrap();
    let mut program = Program::start(python, &library);
    let out = tempfile::tempdir().unwrap();
    let pid = program.child.id().to_string();
    let recorder =
        Recorder::start(&ncclflow, &pid, &out.path().join("out"), &["--strict", "--level", "api"]).unwrap();
    let truth = program.run();
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success(), "{said}");
    let folder = out.path().join("out");
    assert!(!folder.join("stacks.jsonl").exists());
    let session: Value =
        serde_json::from_str(&fs::read_to_string(folder.join("session.json")).unwrap()).unwrap();
    let hits: u64 =
        session["probes"].as_array().unwrap().iter().map(|probe| probe["hits"].as_u64().unwrap()).sum();
    assert_eq!((session["probes"].as_array().unwrap().len(), hits), (1, truth.len() as u64));
    assert!(session["targets"][0].get("python").is_none());
}
