//! Native call stacks of running programs, alone and with Python's frames among them, against what the programs
//! themselves wrote down at each call.
//!
//! The programs call the real NCCL, with a communicator that is none: each call comes to `ncclEnqueueCheck`, and
//! `count` says which call it is. No GPU is needed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_arch = "x86_64")]

use ncclflow_e2e::harness::{
    prelude::*,
    stack_program::{NOT_COPIED, RecordedStacks, StackProgram, watch},
};
use test_support::need_pythons;

const MIXED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/mixed.py");
const NESTED: &str = env!("CARGO_BIN_EXE_ncclflow-nested");

/// Of calls of which it is not known yet where their return addresses are, as of those that come at once afterwards, some may
/// lack native frames, and say so.
const MAY_LACK: f64 = 0.1;
/// Calls of stacks that are known, at least.
const KNOWN: usize = 300;
/// Stacks are known within this.
const KNOWN_WITHIN: Duration = Duration::from_mins(2);
/// Recordings of a program that nobody tells when its stacks are known: the one that watches may stand meanwhile.
const ATTEMPTS: usize = 3;

fn library() -> Option<PathBuf> {
    programs::tracer()?;
    programs::nccl("2.27.5-cu12")
}

/// The stack of a call of this thread; nothing if it says that its native frames were not copied.
fn stack<'r>(recorded: &'r RecordedStacks, called: &Value) -> Option<&'r Value> {
    let number = number(&called["n"]);
    let (tid, stack) = recorded.calls.get(&number).unwrap_or_else(|| panic!("call {number} is not there"));
    assert_eq!(Some(*tid), called["tid"].as_u64(), "call {number}");
    let row = stack.as_ref().and_then(|stack| recorded.stacks.get(stack));
    let row = row.unwrap_or_else(|| panic!("call {number} has no stack: {stack:?}"));
    (row["unknown"] != NOT_COPIED).then_some(row)
}

/// Records a program, and tells it when the stacks of its first thread are known, and when those of its other one are.
/// `latest`: so many calls one after the other are of all kinds that a thread makes.
fn record(
    kind: &str,
    command: &mut Command,
    library: &Path,
    more: &[&str],
    latest: usize,
) -> (Vec<Value>, tempfile::TempDir) {
    let mut program = StackProgram::start(command, library, more).unwrap();
    let out = tempfile::tempdir().unwrap();
    let pid = program.pid();
    let folder = out.path().join("out");
    let options = format!("--strict --level api {kind} --stack-depth 48");
    let recorder = program.attach(&folder, &options).unwrap();
    program.tell("go").unwrap();
    for thread in ["main", "worker"] {
        wait_until(&format!("the stacks of {thread} are known"), KNOWN_WITHIN, || {
            let recorded = RecordedStacks::read_so_far(&folder).unwrap_or_default();
            let known = recorded.thread_that_is_known(latest);
            known.is_some_and(|tid| (tid.to_string() == pid) == (thread == "main"))
        });
        program.tell(thread).unwrap();
    }
    let truth = program.finish().unwrap();
    recorder.end().unwrap();
    (truth, out)
}

fn texts(row: &Value, key: &str) -> Vec<String> {
    let frames = list(&row["frames"]).iter();
    frames.map(|frame| frame[key].as_str().unwrap_or_default().to_owned()).collect()
}

fn few_lack(lacking: usize, of: usize) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    let share = lacking as f64 / of as f64;
    eprintln!("{lacking} of {of} calls have no native frames");
    share < MAY_LACK
}

/// Of those calls whose stacks were known when they were made: before, it depends on how soon somebody looks at them.
fn few_of_known_lack(lacking: usize, truth: &[Value]) {
    let known = truth.iter().filter(|called| called["known"] == true).count();
    assert!(known >= KNOWN && few_lack(lacking, known), "{lacking} of {known}");
}

#[test]
fn every_call_has_the_native_stack_that_the_program_itself_knows() {
    let Some(library) = library() else { return };
    // The deepest of its stacks come every eight rounds of 14 calls.
    let more = ["300", "told"];
    let (truth, out) = record("--stacks=native", &mut Command::new(NESTED), &library, &more, 8 * 14);
    let folder = out.path().join("out");
    let recorded = RecordedStacks::read(&folder).unwrap();
    assert!(truth.len() > 9000, "{}", truth.len());
    let (mut lacking, mut cut, mut places) = (0, 0, BTreeMap::<u64, BTreeSet<String>>::new());
    for called in &truth {
        let marks: Vec<&str> = list(&called["marks"]).iter().map(text).collect();
        let sp = number(&called["stackPointer"]);
        places.entry(sp).or_default().insert(marks.join(" "));
        let Some(row) = stack(&recorded, called) else {
            lacking += usize::from(called["known"] == true);
            continue;
        };
        let (functions, modules) = (texts(row, "function"), texts(row, "module"));
        let what = || format!("{called}\n{row}");
        // From the call inwards there is NCCL alone.
        let call =
            functions.iter().rposition(|name| name == "nested_call").unwrap_or_else(|| panic!("{}", what()));
        assert!(modules[call + 1..].iter().all(|module| module.starts_with("libnccl")), "{}", what());
        assert_eq!(functions[call + 1], "ncclAllReduce", "{}", what());
        // From the call outwards, as many frames of the same files as the C library's own walk finds.
        let expected = list(&called["frames"]).iter().rev();
        let expected: Vec<&str> = expected.map(|module| module.as_str().unwrap_or_default()).collect();
        let found: Vec<&str> = modules[..=call].iter().map(String::as_str).collect();
        let marked: Vec<&str> = functions[..=call]
            .iter()
            .map(String::as_str)
            .filter(|name| name.starts_with("nested_") || name.contains("Layer>::forward"))
            .collect();
        if row["cut"] == true {
            cut += 1;
            assert!(expected.ends_with(&found) && marks.ends_with(&marked), "{}", what());
            assert!(found.len() > 8, "{}", what());
        } else {
            assert_eq!((found, marked), (expected, marks), "{}", what());
            assert!(row["unknown"].is_null(), "{}", what());
        }
        // The kernel has 15 bytes of a thread's name.
        let name = if called["thread"] == "main" { "ncclflow-nested" } else { "worker-7" };
        assert_eq!(row["thread"], name, "{}", what());
    }
    eprintln!("{} calls, {} stacks", truth.len(), recorded.stacks.len());
    few_of_known_lack(lacking, &truth);
    assert!(cut > 0, "the deepest stack is larger than what is copied");
    // Functions that are alike call with the same stack pointer: only return addresses further out tell them apart.
    assert!(places.values().any(|marks| marks.len() >= 3), "{places:?}");
    exported::check(&folder);
}

#[test]
fn pythons_frames_stand_among_native_ones_where_they_were_called() {
    let (Some(library), Some(pythons)) = (library(), need_pythons()) else { return };
    for python in &pythons {
        let mut command = Command::new(&python.program);
        // Of some ten calls each time.
        let (truth, out) = record("--stacks=both", command.arg(MIXED), &library, &["told"], 24);
        let recorded = RecordedStacks::read(&out.path().join("out")).unwrap();
        let release = &python.release;
        let (mut lacking, mut with_frames, mut unnamed) = (0, 0, 0);
        for called in &truth {
            let Some(row) = stack(&recorded, called) else {
                lacking += usize::from(called["known"] == true);
                continue;
            };
            with_frames += 1;
            let what = || format!("{release}: {called}\n{row}");
            let frame = |frame: &Value| {
                let function = text(&frame["function"]);
                let file = frame["file"].as_str();
                // `qsort` jumps to `qsort_r`, or calls it.
                let is_sort = function == "qsort" || function == "qsort_r";
                let function = if is_sort { "qsort" } else { function }.to_owned();
                let line = frame["line"].as_u64().unwrap_or(0);
                (file.is_some() || is_sort).then(|| (function, file.unwrap_or_default().to_owned(), line))
            };
            let mut found: Vec<_> = list(&row["frames"]).iter().filter_map(frame).collect();
            found.dedup_by(|a, b| a.0 == "qsort" && b.0 == "qsort");
            let expected = list(&called["frames"])
                .iter()
                .map(|frame| (text(&frame[0]).to_owned(), text(&frame[1]).to_owned(), number(&frame[2])));
            let mut expected: Vec<_> = expected.collect();
            // Built with tail calls and stripped, 3.15 has no name for what evaluates frames, and says so each time.
            if python.minor >= 15 && row["unknown"] == "native frames not known" {
                unnamed += 1;
                for frames in [&mut found, &mut expected] {
                    frames.retain(|frame| frame.0 != "qsort");
                }
                assert_eq!(found, expected, "{}", what());
                continue;
            }
            assert_eq!(found, expected, "{}", what());
            assert!(row["unknown"].is_null() && row["cut"] == false, "{}", what());
            // Between Python's innermost frame and NCCL there is what calls C functions for Python.
            let (functions, modules) = (texts(row, "function"), texts(row, "module"));
            let innermost = texts(row, "file").iter().rposition(|file| !file.is_empty()).unwrap();
            let nccl = functions.iter().position(|name| name == "ncclAllReduce").unwrap();
            // It can be in the interpreter's own file, of which no frames are told.
            let (between, all) = (modules[innermost + 1..nccl].join(" "), modules.join(" "));
            assert_eq!(between.contains("ffi"), all.contains("ffi"), "{}", what());
            assert!(modules[nccl..].iter().all(|module| module.starts_with("libnccl")), "{}", what());
            assert!(!functions.iter().any(|name| name.starts_with("_PyEval")), "{}", what());
        }
        eprintln!("{release}: {} calls, {} stacks", truth.len(), recorded.stacks.len());
        few_of_known_lack(lacking, &truth);
        assert!(unnamed == 0 || unnamed == with_frames, "{release}: {unnamed} of {with_frames}");
    }
}

/// Counts the stacks of one run, which must be right; gives the calls that lack native frames, and all.
fn count(library: &Path) -> (usize, usize) {
    let mut program = StackProgram::start(&mut Command::new(NESTED), library, &["20"]).unwrap();
    let (truth, text) = watch("--native --folded", &mut program).unwrap();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut all, mut lacking) = (0, 0);
    for line in text.lines() {
        let (frames, count) = line.rsplit_once(' ').unwrap();
        let count: u64 = count.parse().unwrap();
        all += count;
        let Some(name) = ["nested_left", "nested_right", "nested_third"]
            .into_iter()
            .find(|name| frames.contains(&format!("nested_outer [ncclflow-nested];{name} [")))
        else {
            lacking += if frames.contains("nested_call") { 0 } else { count };
            continue;
        };
        *counts.entry(name).or_default() += count;
        assert!(frames.contains("nested_call [ncclflow-nested];ncclAllReduce ["), "{line}");
    }
    assert_eq!(all, truth.len() as u64, "{text}");
    for (name, count) in counts {
        let expected =
            truth.iter().filter(|called| called["marks"].to_string().contains(name)).count() as u64;
        assert!(
            count <= expected && count + lacking >= expected,
            "{name}: {count} of {expected}, {lacking} lacking"
        );
    }
    (usize::try_from(lacking).unwrap(), truth.len())
}

/// `stacks --both` and `--native` count the same calls.
#[test]
fn native_stacks_are_counted() {
    let Some(library) = library() else { return };
    let few = (0..ATTEMPTS).map(|_| count(&library)).any(|(lacking, of)| few_lack(lacking, of));
    assert!(few, "in each of {ATTEMPTS} runs many calls have no native frames");
}
