//! Python's call stacks of running programs, against what the program itself wrote down at each call.
//!
//! The program calls the real NCCL, with a communicator that is none: each call comes to `ncclEnqueueCheck`, and
//! `count` says which call it is. No GPU is needed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};

use ncclflow_e2e::harness::{
    prelude::*,
    stack_program::{RecordedStacks, StackProgram, watch},
};
use test_support::{Interpreter, need_pythons, skip_always};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/stacks.py");

/// Calls of one run, at least; with `NCCLFLOW_LONG=1` more.
const CALLS: usize = 3_500;
const CALLS_LONG: usize = 10_000;

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
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// `more`: the file of stacks that it may look at.
fn started(python: &Path, library: &Path, more: &[&str]) -> StackProgram {
    StackProgram::start(Command::new(python).arg(PROGRAM), library, more).unwrap()
}

/// What the program says of its calls, by their numbers.
fn called(lines: Vec<Value>) -> BTreeMap<u64, Called> {
    let called = lines.into_iter().map(|line| {
        let frame =
            |frame: &Value| (text(&frame[0]).to_owned(), text(&frame[1]).to_owned(), number(&frame[2]));
        let frames = list(&line["frames"]).iter().map(frame).collect();
        let (tid, kind) = (number(&line["tid"]), text(&line["kind"]).to_owned());
        (number(&line["n"]), Called { tid, kind, frames })
    });
    called.collect()
}

/// Frames of a stack, outermost first; `None`: what is not known.
fn frames(stack: &Value) -> Vec<Option<Frame>> {
    let frame = |frame: &Value| {
        let function = text(&frame["function"]);
        let known = (function.to_owned(), frame["file"].as_str()?.to_owned(), frame["line"].as_u64()?);
        (function != "?").then_some(known)
    };
    list(&stack["frames"]).iter().map(frame).collect()
}

/// Compares every call. Frames of code that is dropped at once may be unknown, and are counted.
fn compare(version: &str, truth: &BTreeMap<u64, Called>, recorded: &RecordedStacks, depth: usize) -> usize {
    let least = if is_long() { CALLS_LONG } else { CALLS };
    assert!(truth.len() >= least, "{version}: only {} calls", truth.len());
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
    let out = tempfile::tempdir().unwrap();
    let (session, named) = (out.path().join("out"), out.path().join("named"));
    let stacks = named.display().to_string();
    // The innermost frame alone does not show who called.
    let shown = usize::from(depth > 1);
    let mut program = started(python, library, &[stacks.as_str()][..shown]);
    let asked = if depth == USUAL_DEPTH { String::new() } else { format!("--stack-depth {depth}") };
    let options = format!("--strict --level api --stacks {asked}");
    let is_over = AtomicBool::new(false);
    let truth = thread::scope(|scope| {
        if shown > 0 {
            scope.spawn(|| show_named(&session, &named, &is_over));
        }
        let truth = program.record(&session, &options);
        is_over.store(true, Ordering::Release);
        called(truth.unwrap())
    });
    (truth, out)
}

/// Shows the program the stacks that are in the recording by now: code that is to be named stays so long.
fn show_named(session: &Path, named: &Path, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Acquire) {
        let exported = exported::until_now(session);
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
        let session = session(&folder);
        let said = text(&session["targets"][0]["python"]);
        assert!(said.starts_with(&format!("3.{}", python.minor)), "{said} {version}");
        // The recording has it all.
        exported::check(&folder);
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
    let python = &pythons.first().unwrap().program;
    let expected = |truth: &BTreeMap<u64, Called>| {
        let mut counts: BTreeMap<Vec<Frame>, u64> = BTreeMap::new();
        for called in truth.values().filter(|called| called.kind != "dropped") {
            let outer = called.frames.len().saturating_sub(USUAL_DEPTH);
            *counts.entry(called.frames[outer..].to_vec()).or_default() += 1;
        }
        counts
    };
    let counted = |found: &Value| {
        let mut counts: BTreeMap<Vec<Frame>, u64> = BTreeMap::new();
        for group in list(&found["groups"]) {
            assert_eq!(group["function"], "AllReduce");
            let Some(known) = frames(group).into_iter().collect::<Option<Vec<_>>>() else { continue };
            if !known.iter().any(|frame| frame.1 == "made.py" && frame.0.as_str() >= "made_006") {
                *counts.entry(known).or_default() += number(&group["count"]);
            }
        }
        counts
    };
    let (truth, out) = record(python, &library, USUAL_DEPTH);
    let folder = out.path().join("out");
    assert_eq!(counted(&ncclflow_of("stacks --json", &[&folder]).ok().json()), expected(&truth));
    let of_recording = truth.len() as u64;

    let mut program = started(python, &library, &[]);
    let (lines, output) = watch("--json", &mut program).unwrap();
    let truth = called(lines);
    // Nothing tells this program when its code is named: some that it made may be gone by then.
    let is_made = |frames: &[Frame]| frames.iter().any(|frame| frame.1 == "made.py");
    let apart = |counts: BTreeMap<Vec<Frame>, u64>| -> (BTreeMap<_, _>, BTreeMap<_, _>) {
        counts.into_iter().partition(|(frames, _)| is_made(frames))
    };
    let ((made, others), (made_at_most, all_others)) =
        (apart(counted(&serde_json::from_str(&output).unwrap())), apart(expected(&truth)));
    assert_eq!(others, all_others);
    for (frames, count) in made {
        let at_most = made_at_most.get(&frames).copied().unwrap_or_default();
        assert!(count <= at_most, "{count} and not {at_most} of {frames:?}");
    }
    let folded = ncclflow_of("stacks --folded", &[&folder]).ok().stdout;
    let of_lines = || folded.lines().map(|line| line.rsplit_once(' ').unwrap());
    assert_eq!(of_lines().map(|(_, count)| count.parse::<u64>().unwrap()).sum::<u64>(), of_recording);
    let innermost: BTreeSet<_> =
        of_lines().map(|(stack, _)| stack.rsplit_once(';').unwrap().1.to_owned()).collect();
    assert_eq!(innermost, BTreeSet::from(["ncclAllReduce".to_owned()]));
}

/// Where no process has Python, `stacks` fails: an empty answer would look like a job that calls nothing.
#[test]
fn of_programs_without_python_it_says_so() {
    let Some((program, bed, library)) = programs::needed("2.27.5-cu12") else { return };
    let folder = tempfile::tempdir().unwrap();
    let workload = "--ranks 2 --mode processes --ops allreduce --bytes 4096 --iters 400 --interval-ms 20";
    let bed = Bed::of_words(&bed, &library, folder.path(), workload).unwrap();
    bed.go().unwrap();
    let pids = bed.pid_list();
    let python = ["stacks", "-d", "2", "-p", &pids];
    run(Command::new(&program).args(python)).refused(&["no process runs Python", "--native"]);
    run(Command::new(&program).args(python).arg("--native")).ok();
}

/// Nothing is loaded, walked or sent where stacks are not asked for.
#[test]
fn without_stacks_there_are_none() {
    let Some((pythons, library)) = prepared() else { return };
    let python = &pythons.last().unwrap().program;
    let mut program = started(python, &library, &[]);
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("out");
    let truth = called(program.record(&folder, "--strict --level api").unwrap());
    assert!(!folder.join("stacks.jsonl").exists());
    let session = session(&folder);
    let probes = &session["probes"];
    assert_eq!((list(probes).len(), sum(probes, "hits")), (1, truth.len() as u64));
    assert!(session["targets"][0].get("python").is_none());
}
