//! A copy of a library as a distribution ships it: without symbols and debugging information.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

/// Makes `folder/libnccl.so.2` with `strip` and these options; or, as binutils may know no processor but this
/// machine's, with `llvm-strip`.
///
/// # Errors
/// If neither is there, or can.
pub fn copy(library: &Path, folder: &Path, options: &[&str]) -> Result<PathBuf> {
    let copy = folder.join("libnccl.so.2");
    let mut said = Vec::new();
    for tool in ["strip", "llvm-strip"] {
        let run = Command::new(tool).args(options).arg(library).arg("-o").arg(&copy).output();
        match run {
            Ok(output) if output.status.success() => return Ok(copy),
            Ok(output) => said.push(format!("{tool}: {}", String::from_utf8_lossy(&output.stderr))),
            Err(error) => said.push(format!("{tool}: {error}")),
        }
    }
    bail!(
        "`strip {}` of `{}` failed (Debian: binutils, llvm): {}",
        options.join(" "),
        library.display(),
        said.join("; ")
    );
}
