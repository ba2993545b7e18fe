//! `cargo xtask verify promises`: each promise of SECURITY.md names its tests, and they are there.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{repository, tool};

/// Document and the heading of its numbered promises.
const DOCUMENT: &str = "SECURITY.md";
const HEADING: &str = "## What is promised";

/// Begins the sentence that names tests, each as `FILE: FUNCTION` in backticks. FILE is the end of a path.
const TESTS: &str = "Tests:";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// A promise by its number, with the tests that it names: file and function.
#[derive(Debug, PartialEq, Eq)]
struct Promise<'t> {
    number: u32,
    tests: Vec<(&'t str, &'t str)>,
}

pub(crate) fn run(_: &Args) -> Result<()> {
    let root = repository::root();
    let text = fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("reading {DOCUMENT}"))?;
    let files = tool::output(Command::new("git").current_dir(&root).args(["ls-files", "*.rs"]))?;
    let files = String::from_utf8_lossy(&files).into_owned();
    let has = |file: &str, function: &str| {
        let is_it = |path: &&str| Path::new(path).ends_with(file);
        files.lines().filter(is_it).any(|path| {
            let source = fs::read_to_string(root.join(path)).unwrap_or_default();
            is_test(&source, function)
        })
    };
    let promises = promises(&text);
    let wrong = faults(&promises, has);
    if !wrong.is_empty() {
        bail!("{DOCUMENT}: {}", wrong.join("; "));
    }
    println!("{} promises, each with tests that are there", promises.len());
    Ok(())
}

/// Tells whether a source has a test function of this name.
fn is_test(source: &str, function: &str) -> bool {
    let mut lines = source.lines().map(str::trim);
    let mut is_marked = false;
    lines.any(|line| {
        let is_it = line.strip_prefix("fn ").and_then(|rest| rest.strip_prefix(function));
        let found = is_marked && is_it.is_some_and(|rest| rest.starts_with('('));
        // Other attributes may stand between.
        is_marked = line == "#[test]" || (is_marked && (line.starts_with("#[") || line.starts_with("//")));
        found
    })
}

fn promises(text: &str) -> Vec<Promise<'_>> {
    let section = text.split_once(HEADING).map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    let begins = |at: usize| {
        let (number, _) = section.get(at..)?.lines().next()?.split_once(". ")?;
        Some((at, number.parse().ok()?))
    };
    let starts: Vec<(usize, u32)> =
        section.match_indices('\n').filter_map(|(before, _)| begins(before + 1)).collect();
    let ends = starts.iter().skip(1).map(|(at, _)| *at).chain([section.len()]);
    let bodies = starts.iter().zip(ends);
    bodies
        .map(|((at, number), end)| Promise {
            number: *number,
            tests: tests(section.get(*at..end).unwrap_or_default()),
        })
        .collect()
}

/// Returns the tests that a promise names.
fn tests(body: &str) -> Vec<(&str, &str)> {
    let named = body.split_once(TESTS).map_or("", |(_, named)| named);
    // What is in backticks stands at odd places.
    let quoted = named.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|quoted| quoted.split_once(':'))
        .map(|(file, name)| (file.trim(), name.trim()))
        .collect()
}

fn faults(promises: &[Promise<'_>], has: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    if promises.is_empty() {
        faults.push(format!("no promise stands below `{HEADING}`"));
    }
    for (at, promise) in (1..).zip(promises) {
        let number = promise.number;
        if number != at {
            faults.push(format!("promise {number} should have the number {at}"));
        }
        if promise.tests.is_empty() {
            faults.push(format!("promise {number} names no test (`{TESTS}`)"));
        }
        for (file, function) in promise.tests.iter().filter(|(file, function)| !has(file, function)) {
            faults.push(format!("promise {number}: there is no test `{function}` in a file `{file}`"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Security\n\n1. Not one.\n\n## What is promised\n\n1. **This** is so,\n   always. Tests:\n   \
                        `a.rs: one`,\n   `b/c.rs:\n   two`.\n2. That, too.\n\n## Else\n\n1. No.\n";

    #[test]
    fn promises_are_read_with_their_tests() {
        let promises = promises(TEXT);
        let tests = vec![("a.rs", "one"), ("b/c.rs", "two")];
        assert_eq!(promises, [Promise { number: 1, tests }, Promise { number: 2, tests: Vec::new() }]);
    }

    #[test]
    fn a_promise_without_a_test_or_with_one_that_is_not_there_is_a_fault() {
        let known = promises(TEXT);
        let faults_of = |has: fn(&str, &str) -> bool| faults(&known, has);
        assert_eq!(faults_of(|_, _| true), ["promise 2 names no test (`Tests:`)"]);
        let missing = faults_of(|file, _| file == "a.rs");
        assert_eq!(missing.len(), 2);
        assert!(missing[0].contains("no test `two` in a file `b/c.rs`"), "{missing:?}");
        assert_eq!(faults(&[], |_, _| true).len(), 1);
    }

    #[test]
    fn a_test_is_a_function_that_is_marked_as_one() {
        let source = "#[test]\n#[ignore]\nfn one() {}\n\nfn two() {}\n    #[test]\n    fn three_more() {}\n";
        assert!(is_test(source, "one") && is_test(source, "three_more"));
        assert!(!is_test(source, "two") && !is_test(source, "three"));
    }
}
