//! Programs that a chore runs: the system's, cargo, and the project's own.

use std::{env, ffi::OsStr, os::unix::ffi::OsStrExt as _, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

/// Runs a program to its end and shows its output. `purpose` says what it is for, as in "for the man pages".
pub(crate) fn run(command: &mut Command, purpose: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("starting `{program}`, for {purpose}"))?;
    if !status.success() {
        bail!("`{program}` failed ({status}), for {purpose}");
    }
    Ok(())
}

/// Runs a program to its end and returns its standard output. An error has what it wrote to standard error.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting `{program}`"))?;
    if !output.status.success() {
        bail!("`{program}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

/// Returns the path of this program. The file can be younger than the process: a build of the whole workspace
/// replaces it.
pub(crate) fn own_program() -> Result<PathBuf> {
    let here = env::current_exe().context("finding our own program")?;
    // The kernel's word for a file that was replaced.
    let replaced = here.as_os_str().as_bytes().strip_suffix(b" (deleted)").map(OsStr::from_bytes);
    Ok(replaced.map(PathBuf::from).unwrap_or(here))
}

/// Says something to people, on standard error: standard output is for results.
#[expect(clippy::print_stderr, reason = "xtask talks to people")]
pub(crate) fn say(message: &str) {
    eprintln!("{message}");
}
