//! A copy of a library as a distribution ships it: without symbols and debugging information.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use memchr::memmem;

/// Makes `folder/libnccl.so.2` with `strip` and these options; or, as binutils may know no processor but this
/// machine's, with `llvm-strip`.
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

/// Runs `objcopy` with these options on a library, and makes `copy`.
pub fn by_objcopy(library: &Path, copy: &Path, options: &[&str]) -> Result<()> {
    let run = Command::new("objcopy").args(options).arg(library).arg(copy).output();
    let run = run.context("running objcopy (Debian: binutils)")?;
    if !run.status.success() {
        bail!("`objcopy {}`: {}", options.join(" "), String::from_utf8_lossy(&run.stderr));
    }
    Ok(())
}

/// Makes `folder/libnccl.so.2` as somebody else's build of NCCL is: stripped, without a build ID, and of a
/// version that nobody knows. So its layouts cannot be known. Its code is that of `library`.
pub fn foreign(library: &Path, folder: &Path) -> Result<PathBuf> {
    const VERSION: &[u8] = b"NCCL version 2.";
    let copy = copy(library, folder, &["--strip-all", "--remove-section", ".note.gnu.build-id"])?;
    let mut bytes = fs::read(&copy).context("reading the stripped library")?;
    let places: Vec<usize> = memmem::find_iter(&bytes, VERSION).collect();
    if places.is_empty() {
        bail!("`{}` does not say its version", library.display());
    }
    for at in places {
        // Version 9.
        if let Some(major) = bytes.get_mut(at + VERSION.len() - 2) {
            *major = b'9';
        }
    }
    fs::write(&copy, bytes).context("writing the stripped library")?;
    Ok(copy)
}
