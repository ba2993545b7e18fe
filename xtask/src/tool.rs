//! Programs that a chore runs: the system's, cargo, and the project's own.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Runs a program to its end and shows its output. `purpose`: what it is for, as in "for the man pages".
pub(crate) fn run(command: &mut Command, purpose: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("starting `{program}`, for {purpose}"))?;
    if !status.success() {
        bail!("`{program}` failed ({status}), for {purpose}");
    }
    Ok(())
}

/// Runs a program to its end and gives its standard output. An error has what it wrote to standard error.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting `{program}`"))?;
    if !output.status.success() {
        bail!("`{program}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}
