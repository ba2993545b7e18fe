//! Compilers and binutils, which some tests make their fixtures with.

use std::{env, process::Command};

use crate::skip::skip;

/// The program that `variable` of the environment names, or else `usual`; if it does not run,
/// skips for want of `thing`.
///
/// That it runs is all that may be missing: a fixture that it then refuses is a failure of the test.
///
/// # Panics
/// As [`skip`] does.
#[must_use]
pub fn tool(thing: &str, variable: &str, usual: &str) -> Option<Command> {
    let program = env::var_os(variable).filter(|program| !program.is_empty()).unwrap_or_else(|| usual.into());
    let answer = Command::new(&program).arg("--version").output();
    if answer.is_ok_and(|output| output.status.success()) {
        return Some(Command::new(program));
    }
    skip(thing, &format!("`{}` does not run; on Debian: apt-get install g++ binutils", program.display()));
    None
}
