//! The one way to skip a test, or a part of one.
//!
//! libtest cannot skip at run time: a test that returns early counts as passed, and what it prints is
//! swallowed. So a skip is written past libtest's capture, and appended to the file that
//! `$NCCLFLOW_SKIPS` names. `cargo xtask test` sets that variable and lists at its end what was skipped.
//! `$NCCLFLOW_REQUIRE` makes skips failures.

use std::{env, fs::File, io::Write as _};

/// Says that the current test, or a part of it, does not run: what is missing, and how to get it.
///
/// # Panics
/// If `$NCCLFLOW_REQUIRE`, a comma list, names `thing` or is `all`; and if the record of skips cannot be
/// written.
pub fn skip(thing: &str, remedy: &str) {
    let test = test_name();
    let required = env::var("NCCLFLOW_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').map(str::trim).any(|name| name == thing || name == "all"),
        "a test that must run cannot: it needs {thing}: {remedy}"
    );
    say(&test, thing, remedy);
}

/// As [`skip`], but never a failure, whatever is required: for what not every network lets through.
///
/// # Panics
/// If the record of skips cannot be written.
pub fn skip_always(thing: &str, remedy: &str) {
    say(&test_name(), thing, remedy);
}

fn say(test: &str, thing: &str, remedy: &str) {
    let line = format!("{test}: needs {thing}: {remedy}").replace('\n', " ");
    // Not eprintln!, which libtest captures. What standard error does with it is not the test's concern.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {line}");
    if let Some(path) = env::var_os("NCCLFLOW_SKIPS") {
        // One write(2) with O_APPEND: lines of tests that run side by side do not mix.
        let file = File::options().append(true).create(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        assert!(written.is_ok(), "recording a skip in {}: {written:?}", path.display());
    }
}

/// Whether `available`; if not, skips.
///
/// # Panics
/// As [`skip`] does.
#[must_use]
pub fn need(thing: &str, available: bool, remedy: &str) -> bool {
    if !available {
        skip(thing, remedy);
    }
    available
}

/// Whether we are root, which uprobes and BPF need; if not, skips.
///
/// # Panics
/// As [`skip`] does.
#[must_use]
pub fn root() -> bool {
    need(
        "root",
        rustix::process::geteuid().is_root(),
        "run `cargo xtask test`, as root or as a user with sudo",
    )
}

/// `program::test`. libtest names a test's thread after it, but for `--test-threads 1`, where nextest passes
/// its name as an argument.
fn test_name() -> String {
    let program = env::current_exe().unwrap_or_default();
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    // Cargo appends a hash to the names of test programs.
    let program = program.rsplit_once('-').map_or(&*program, |(name, _hash)| name);
    let thread = std::thread::current();
    match thread.name().filter(|name| *name != "main") {
        Some(test) => format!("{program}::{test}"),
        None => format!(
            "{program}::{}",
            env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default()
        ),
    }
}
