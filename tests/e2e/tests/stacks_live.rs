//! Python's call stacks of running programs, against what the program itself wrote down at each call.
//!
//! The program calls the real NCCL, with a communicator that is none: each call comes to `ncclEnqueueCheck`, and
//! `count` says which call it is. No GPU is needed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use ncclflow_e2e::harness::{
    exported, programs,
    recorder::Recorder,
    stack_program::{RecordedStacks, StackProgram, watch},
};
use serde_json::Value;
use test_support::{Interpreter, need_pythons, root, skip_always};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/stacks.py");

/// Calls of one run, at least.
const CALLS: usize = 10_000;

/// Frames of a stack where no number is asked for.
const USUAL_DEPTH: usize = 24;

/// A frame: function, file, line.
type Frame = (String, String, u64);

/// What the program says of one call.
struct Called {
    tid: u64,
    kind: String,
    frames: Vec<Frame>,
}

/// Time between two looks at what is named.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// `more`: the file of stacks that it may look at.
fn started(python: &Path, library: &Path, more: &[&str]) -> StackProgram {
    StackProgram::start(Command::new(python).arg(PROGRAM), library, more).unwrap()
}

/// What the program says of its calls, by their numbers.
fn called(lines: Vec<Value>) -> BTreeMap<u64, Called> {
    let called = lines.into_iter().map(|line| {
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
fn compare(version: &str, truth: &BTreeMap<u64, Called>, recorded: &RecordedStacks, depth: usize) -> usize {
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

/// Records one run of the program, with as many frames of each stack.
fn record(python: &Path, library: &Path, depth: usize) -> (BTreeMap<u64, Called>, tempfile::TempDir) {
    let ncclflow = programs::ncclflow().unwrap();
    let out = tempfile::tempdir().unwrap();
    let (session, named) = (out.path().join("out"), out.path().join("named"));
    let stacks = named.display().to_string();
    // The innermost frame alone does not show who called.
    let shown = usize::from(depth > 1);
    let mut program = started(python, library, &[stacks.as_str()][..shown]);
    let number = depth.to_string();
    let asked = if depth == USUAL_DEPTH { Vec::new() } else { vec!["--stack-depth", &number] };
    let options = [&["--strict", "--level", "api", "--stacks"][..], &asked].concat();
    let pid = program.pid();
    let recorder = Recorder::start(&ncclflow, &pid, &session, &options).unwrap();
    let is_over = AtomicBool::new(false);
    let truth = thread::scope(|scope| {
        if shown > 0 {
            scope.spawn(|| show_named(&ncclflow, &session, &named, &is_over));
        }
        let truth = program.run();
        is_over.store(true, Ordering::Release);
        called(truth.unwrap())
    });
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success(), "{said}");
    (truth, out)
}

/// Shows the program the stacks that are in the recording by now: code that is to be named stays so long.
fn show_named(ncclflow: &Path, session: &Path, named: &Path, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Acquire) {
        let exported = exported::until_now(ncclflow, session);
        // There are none before the first record.
        if let Ok(stacks) = fs::read(exported.path().join("stacks.jsonl")) {
            let whole = named.with_extension("whole");
            fs::write(&whole, stacks).unwrap();
            fs::rename(&whole, named).unwrap();
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn prepared() -> Option<(Vec<Interpreter>, PathBuf)> {
    let library = programs::nccl("2.27.5-cu12")?;
    programs::ncclflow()?;
    let pythons = need_pythons()?;
    if !pythons.iter().any(|python| python.free_threaded) {
        skip_always("a CPython without the GIL", "`uv python install 3.14t`, or NCCLFLOW_PYTHONS");
    }
    root().then_some((pythons, library))
}

#[test]
fn every_call_has_the_stack_that_the_program_itself_knows() {
    let Some((pythons, library)) = prepared() else { return };
    for python in &pythons {
        let version = python.release.as_str();
        let (truth, out) = record(&python.program, &library, USUAL_DEPTH);
        let folder = out.path().join("out");
        let recorded = RecordedStacks::read(&folder).unwrap();
        let unknown = compare(version, &truth, &recorded, USUAL_DEPTH);
        let gil = if python.free_threaded { " without the GIL" } else { "" };
        eprintln!(
            "{version}{gil}: {} calls, {} stacks, {unknown} with code that was dropped at once and is not known",
            truth.len(),
            recorded.stacks.len()
        );
        let session: Value =
            serde_json::from_str(&fs::read_to_string(folder.join("session.json")).unwrap()).unwrap();
        let said = session["targets"][0]["python"].as_str().unwrap();
        assert!(said.starts_with(&format!("3.{}", python.minor)), "{said} {version}");
        // The recording has it all.
        exported::check(&programs::ncclflow().unwrap(), &folder);
    }
}

#[test]
fn the_depth_is_what_was_asked_for() {
    let Some((pythons, library)) = prepared() else { return };
    let python = pythons.last().unwrap();
    for depth in [1, 48] {
        let (truth, out) = record(&python.program, &library, depth);
        compare(&python.release, &truth, &RecordedStacks::read(&out.path().join("out")).unwrap(), depth);
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
            let outer = called.frames.len().saturating_sub(USUAL_DEPTH);
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
    let (truth, out) = record(python, &library, USUAL_DEPTH);
    let folder = out.path().join("out");
    let run = Command::new(&ncclflow).arg("stacks").arg(&folder).arg("--json").output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(counted(&run.stdout), expected(&truth));
    let of_recording = truth.len() as u64;

    let mut program = started(python, &library, &[]);
    let (lines, output) = watch(&ncclflow, &["--json"], &mut program).unwrap();
    let truth = called(lines);
    // Nothing tells this program when its code is named: some that it made may be gone by then.
    let is_made = |frames: &[Frame]| frames.iter().any(|frame| frame.1 == "made.py");
    let apart = |counts: BTreeMap<Vec<Frame>, u64>| -> (BTreeMap<_, _>, BTreeMap<_, _>) {
        counts.into_iter().partition(|(frames, _)| is_made(frames))
    };
    let ((made, others), (made_at_most, all_others)) =
        (apart(counted(&output.stdout)), apart(expected(&truth)));
    assert_eq!(others, all_others);
    for (frames, count) in made {
        let at_most = made_at_most.get(&frames).copied().unwrap_or_default();
        assert!(count <= at_most, "{count} and not {at_most} of {frames:?}");
    }
    let folded = Command::new(&ncclflow).arg("stacks").arg(&folder).arg("--folded").output().unwrap();
    let text = String::from_utf8(folded.stdout).unwrap();
    let of_lines: u64 =
        text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(of_lines, of_recording);
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
    let mut program = started(python, &library, &[]);
    let out = tempfile::tempdir().unwrap();
    let pid = program.pid();
    let recorder =
        Recorder::start(&ncclflow, &pid, &out.path().join("out"), &["--strict", "--level", "api"]).unwrap();
    let truth = called(program.run().unwrap());
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
