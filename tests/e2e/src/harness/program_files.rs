//! Programs and scripts that a test makes and then starts.
//!
//! Another process writes them. A file that this process has open for writing is open in every child, too, that
//! another test's thread starts meanwhile, until that child has become its program; and what is open for writing
//! cannot be started ("text file busy").

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// Copies a program.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("-p").arg(from).arg(to).status().context("starting cp")?;
    if !status.success() {
        bail!("copying `{}` to `{}`: {status}", from.display(), to.display());
    }
    Ok(())
}

/// Makes a script of the shell out of these lines.
pub fn script(path: &Path, lines: &str) -> Result<()> {
    let mut writer = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .context("starting sh")?;
    let mut input = writer.stdin.take().context("sh has no standard input")?;
    write!(input, "#!/bin/sh\n{lines}\n")?;
    drop(input);
    let status = writer.wait()?;
    if !status.success() {
        bail!("writing `{}`: {status}", path.display());
    }
    Ok(())
}
