//! A copy of a library as a distribution ships it: without symbols and debugging information.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

/// Makes `folder/libnccl.so.2` with `strip` and these options.
///
/// # Errors
/// If there is no `strip`, or it fails.
pub fn copy(library: &Path, folder: &Path, options: &[&str]) -> Result<PathBuf> {
    let copy = folder.join("libnccl.so.2");
    let status = Command::new("strip").args(options).arg(library).arg("-o").arg(&copy).status();
    let status = status.context("starting `strip` (Debian: binutils)")?;
    if !status.success() {
        bail!("`strip {}` of `{}` failed ({status})", options.join(" "), library.display());
    }
    Ok(copy)
}
