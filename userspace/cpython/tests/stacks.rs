//! Stacks that are read from outside, against what Python itself states: every CPython that is found,
//! stripped and static ones too.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{collections::BTreeMap, fs, path::Path, process::Command, time::Instant};

use cpython::{MAX_FRAMES, PyFrame, StackEnd, Walker};
use serde::Deserialize;
use support::Subject;
use test_support::{Interpreter, is_long, need_pythons, tool};

const TRUTH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stacks/truth.py");

/// Facts that the program states of itself.
#[derive(Deserialize)]
struct Told {
    case: String,
    thread: u32,
    frames: Vec<(String, String, Option<u32>, Option<String>)>,
}

/// Reads every stack that the program tells of; returns how many there were, by case.
fn compare(command: &mut Command, what: &str) -> BTreeMap<String, usize> {
    let mut subject = Subject::start(command);
    let mut cases: BTreeMap<String, usize> = BTreeMap::new();
    let mut python = None;
    while let Some(line) = subject.line() {
        let told: Told = serde_json::from_str(&line).unwrap();
        let python = *python.get_or_insert_with(|| subject.python());
        let mut walker = Walker::new(python, &subject.memory);
        let threads = walker.threads().unwrap();
        let stack = walker.stack(subject.thread(&threads, told.thread));
        assert!(!stack.moving, "{what}: {line}");
        let frames: Vec<PyFrame> = stack.frames.iter().map(|frame| walker.frame(*frame).unwrap()).collect();
        let read: Vec<_> = frames
            .into_iter()
            .map(|frame| (frame.function, frame.file, frame.line, frame.qualname))
            .collect();
        let (innermost, read) = read.split_first().unwrap();
        assert_eq!(innermost.0, "check", "{what}");
        let (expected, end) = if told.frames.len() >= MAX_FRAMES {
            (&told.frames[..MAX_FRAMES - 1], StackEnd::Limit)
        } else {
            (&*told.frames, StackEnd::Outermost)
        };
        assert_eq!(read, expected, "{what}: {}", told.case);
        assert_eq!(stack.end, end, "{what}: {}", told.case);
        *cases.entry(told.case).or_default() += 1;
        subject.go_on();
    }
    cases
}

fn truth(interpreter: &Interpreter, program: &Path, rounds: u32) -> Command {
    let mut command = Command::new(program);
    let seed = 7 * rounds + interpreter.minor;
    command.args(["-I", TRUTH, &rounds.to_string(), &seed.to_string()]);
    command
}

#[test]
fn every_stack_of_every_interpreter_is_what_python_says_it_is() {
    let Some(pythons) = need_pythons() else { return };
    let rounds = if is_long() { 400 } else { 60 };
    let mut total = 0;
    for python in pythons {
        let started = Instant::now();
        let what = format!("{} ({})", python.release, python.program.display());
        let cases = compare(&mut truth(&python, &python.program, rounds), &what);
        let stacks: usize = cases.values().sum();
        println!("{what}: {stacks} stacks of {} cases in {:?}", cases.len(), started.elapsed());
        // Cases that the program must have come to.
        for case in ["compiled", "coroutine", "generator", "lambda", "decorated", "import", "plain", "module"]
        {
            assert!(cases.contains_key(case), "{what}: {case}");
        }
        total += stacks;
    }
    assert!(total >= 2 * 1500, "{total}");
}

fn strip_all(from: &Path, to: &Path) {
    let mut strip = tool("strip", "STRIP", "strip").unwrap();
    assert!(strip.arg("--strip-all").arg("-o").arg(to).arg(from).status().unwrap().success());
}

/// Interpreters as distributions ship them: no symbols but those that extensions need.
#[test]
fn stripped_interpreters_are_read_too() {
    let Some(pythons) = need_pythons() else { return };
    if tool("strip", "STRIP", "strip").is_none() {
        return;
    }
    for python in pythons {
        let folder = tempfile::tempdir().unwrap();
        let (_, _, file) = {
            let mut subject = Subject::start(&mut truth(&python, &python.program, 1));
            subject.line().unwrap();
            subject.runtime()
        };
        let strip = |from: &Path| {
            let to = folder.path().join(from.file_name().unwrap());
            strip_all(from, &to);
            to
        };
        let program = strip(&python.program);
        if file != python.program {
            strip(&file);
        }
        // The interpreter's library from this folder, and its modules from where they are.
        let home = python.program.parent().unwrap().parent().unwrap();
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", folder.path()).env("PYTHONHOME", home);
        command.args([TRUTH, "2", "1"]);
        let what = format!("stripped {}", python.release);
        assert!(compare(&mut command, &what).values().sum::<usize>() > 60, "{what}");
    }
}

/// A program that exports nothing has the section all the same (3.10 and later).
#[test]
fn a_runtime_without_a_symbol_is_found_by_its_section() {
    use cpython::locate;
    use nccl_library::elf::{Budget, Image, SymbolTable};

    let (Some(mut compiler), Some(_)) = (tool("cc", "CC", "cc"), tool("strip", "STRIP", "strip")) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("program.c");
    let text = "__attribute__((section(\".PyRuntime\"))) char _PyRuntime[800] = \"xdebugpy\";\n\
                int main(void) { return _PyRuntime[0]; }\n";
    fs::write(&source, text).unwrap();
    let program = folder.path().join("program");
    assert!(compiler.arg("-o").arg(&program).arg(&source).status().unwrap().success());
    let found = |program| locate::runtime(&Image::open(program).unwrap()).unwrap().unwrap();
    let has_symbols = |program| {
        let mut budget = Budget::new(1 << 20, u64::MAX);
        let table = SymbolTable::read(&Image::open(program).unwrap(), &mut budget).unwrap();
        table.is_some_and(|table| table.objects().any(|object| object.name == "_PyRuntime"))
    };
    assert!(has_symbols(&program));
    let stripped = folder.path().join("stripped");
    strip_all(&program, &stripped);
    assert!(!has_symbols(&stripped));
    assert_eq!(found(&stripped).distance, found(&program).distance);
}
