//! Runs `cargo test`, passes on what it prints, and notes which tests of which targets failed.

use std::{
    collections::BTreeSet,
    io::{self, BufRead as _, BufReader, Read, Write},
    mem,
    process::{Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

/// Result of a run.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) status: ExitStatus,
    /// Names of tests as libtest prints them.
    pub(super) failed_tests: BTreeSet<String>,
    pub(super) passed_tests: BTreeSet<String>,
    /// Number of tests that passed: targets can have tests of the same name.
    pub(super) passed: usize,
    /// Options by which cargo runs a target that failed: `-p NAME --test NAME`.
    pub(super) failed_targets: BTreeSet<String>,
    /// Time that each target ran, the longest first.
    pub(super) times: Vec<(String, Duration)>,
    /// True if a target did not end as libtest does: some of its tests did not run.
    pub(super) is_cut_short: bool,
}

/// Time to wait for the rest of its output when it has ended: a program that a test left behind can hold the
/// pipe.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs it to its end.
pub(super) fn run(command: &mut Command) -> Result<Outcome> {
    run_to(command, &mut io::stdout(), &mut io::stderr())
}

fn run_to(command: &mut Command, output: &mut impl Write, errors: &mut impl Write) -> Result<Outcome> {
    // The words that are noted have no colors.
    let command = command.env("CARGO_TERM_COLOR", "never").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting cargo test")?;
    let (lines, printed) = mpsc::channel();
    read_lines(child.stdout.take(), lines.clone(), Line::Output);
    read_lines(child.stderr.take(), lines, Line::Error);
    let (mut failed_tests, mut passed_tests, mut failed_targets) =
        <(BTreeSet<_>, BTreeSet<_>, BTreeSet<_>)>::default();
    let (mut passed, mut ended, mut is_cut_short) = (0, None, false);
    let mut begun: Vec<(String, Instant)> = Vec::new();
    loop {
        // A terminal that is gone does not end the tests.
        match printed.recv_timeout(Duration::from_millis(100)) {
            Ok(Line::Output(line)) => {
                let _ = output.write_all(&line).and_then(|()| output.flush());
                let line = String::from_utf8_lossy(&line);
                failed_tests.extend(test_of(&line, " ... FAILED").map(str::to_owned));
                if let Some(test) = test_of(&line, " ... ok") {
                    passed += 1;
                    passed_tests.insert(test.to_owned());
                }
            }
            Ok(Line::Error(line)) => {
                let _ = errors.write_all(&line);
                let line = String::from_utf8_lossy(&line);
                failed_targets.extend(target_of(&line).map(str::to_owned));
                begun.extend(target_begun(&line).map(|target| (target.to_owned(), Instant::now())));
                is_cut_short |= line.contains("process didn't exit successfully");
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                if ended.is_none() && child.try_wait().context("waiting for cargo test")?.is_some() {
                    ended = Some(Instant::now());
                }
                if ended.is_some_and(|ended| ended.elapsed() > PATIENCE) {
                    break;
                }
            }
        }
    }
    let status = child.wait().context("waiting for cargo test")?;
    let ends = begun.iter().skip(1).map(|(_, at)| *at).chain([Instant::now()]);
    let took = begun.iter().zip(ends).map(|((target, at), end)| (target.clone(), end.duration_since(*at)));
    let mut times: Vec<(String, Duration)> = took.collect();
    times.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    Ok(Outcome { status, failed_tests, passed_tests, passed, failed_targets, times, is_cut_short })
}

#[derive(Debug)]
enum Line {
    Output(Vec<u8>),
    Error(Vec<u8>),
}

/// Sends all lines, with their ends.
fn read_lines(input: Option<impl Read + Send + 'static>, lines: Sender<Line>, line_of: fn(Vec<u8>) -> Line) {
    let Some(input) = input else { return };
    thread::spawn(move || {
        let mut input = BufReader::new(input);
        let mut line = Vec::new();
        while input.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            if lines.send(line_of(mem::take(&mut line))).is_err() {
                break;
            }
        }
    });
}

/// Returns the test of which a line of libtest's says that it ended in this way.
fn test_of<'a>(line: &'a str, end: &str) -> Option<&'a str> {
    let name = line.trim_end().strip_prefix("test ")?.strip_suffix(end)?;
    Some(name.strip_suffix(" - should panic").unwrap_or(name))
}

/// Returns the target that begins, of a line of cargo's: `tests/dump.rs`.
fn target_begun(line: &str) -> Option<&str> {
    let target = line.trim_start();
    let target = target.strip_prefix("Running ").or_else(|| target.strip_prefix("Doc-tests "))?;
    Some(target.split(" (").next().unwrap_or(target).trim_end())
}

/// Returns the target that failed, of a line of cargo's.
fn target_of(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("to rerun pass `")?;
    rest.trim_end().strip_suffix('`')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words are those of cargo 1.98 and its libtest.
    #[test]
    fn what_failed_is_noted_and_all_is_passed_on() {
        let script = "cat <<'END'\nrunning 3 tests\ntest a::b ... ok\ntest a::c ... FAILED\n\
                      test src/lib.rs - f (line 3) ... FAILED\ntest d - should panic ... FAILED\n\
                      test a::c has been running for over 60 seconds\ntest result: FAILED. 1 passed; 3 failed\nEND\n\
                      cat >&2 <<'END'\n     Running tests/links.rs (target/debug/deps/links-2b1b5da1798be5ea)\n\
                      error: test failed, to rerun pass `-p ncclflow-e2e --test line_files`\n\
                      error: doctest failed, to rerun pass `-p flow --doc`\n\
                      error: 2 targets failed:\n    `-p flow --doc`\nEND\nexit 101";
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let outcome = run_to(Command::new("sh").args(["-c", script]), &mut output, &mut errors).unwrap();
        assert!(output.ends_with(b"3 failed\n") && errors.ends_with(b"--doc`\n"));
        assert_eq!(outcome.status.code(), Some(101));
        let list = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>();
        assert_eq!((list(outcome.passed_tests), outcome.passed), (vec!["a::b".to_owned()], 1));
        assert_eq!(list(outcome.failed_tests), ["a::c", "d", "src/lib.rs - f (line 3)"]);
        assert_eq!(list(outcome.failed_targets), ["-p flow --doc", "-p ncclflow-e2e --test line_files"]);
        assert!(!outcome.is_cut_short);
        assert_eq!(outcome.times.len(), 1);
        assert_eq!(outcome.times[0].0, "tests/links.rs");
    }

    #[test]
    fn a_target_that_was_killed_is_noted() {
        let script = "echo 'error: test failed, to rerun pass `--lib`' >&2; echo >&2; echo 'Caused by:' >&2; \
                      echo \"  process didn't exit successfully: /x (signal: 6, SIGABRT)\" >&2; exit 101";
        let outcome = run_to(Command::new("sh").args(["-c", script]), &mut Vec::new(), &mut Vec::new());
        assert!(outcome.is_ok_and(|outcome| outcome.is_cut_short));
    }

    #[test]
    fn lines_are_passed_on_as_they_are_and_who_holds_the_pipe_is_not_waited_for() {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let script = r"printf 'a\n\377\n\nb\n'; sleep 10 &";
        let outcome = run_to(Command::new("sh").args(["-c", script]), &mut output, &mut errors);
        assert!(outcome.is_ok_and(|outcome| outcome.status.success()));
        assert_eq!(output, b"a\n\xff\n\nb\n");
    }
}
