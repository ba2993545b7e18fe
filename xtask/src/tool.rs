//! Programs of the system that a chore needs.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Runs one to its end; what it says is shown. `what`: what it is for, as in "for the man pages".
pub(crate) fn run(command: &mut Command, what: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("starting `{program}`, for {what}"))?;
    if !status.success() {
        bail!("`{program}` failed ({status}), for {what}");
    }
    Ok(())
}
