//! The project's own programs, built when they are needed.

use std::{env, ffi::OsString, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::repository;

/// The cargo that runs us.
pub(crate) fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Builds these packages and gives the folder that their programs are in.
pub(crate) fn build(packages: &[&str]) -> Result<PathBuf> {
    println!("building {}", packages.join(", "));
    let status = Command::new(cargo())
        .args(["build", "--quiet", "--locked"])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .current_dir(repository::root())
        .status()
        .context("starting cargo build")?;
    if !status.success() {
        bail!("the build failed ({status})");
    }
    // cargo put us there too, in the same profile.
    let here = env::current_exe().context("finding our own program")?;
    Ok(here.parent().context("our own program is in no folder")?.to_path_buf())
}
