//! Processes of every sort that a node can have, side by side.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::{bed::Bed, program_files};

/// A child that is killed when this is dropped.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A script that starts the bed in mount and PID namespaces of its own. There `hidden` is the library
/// `library`, and outside it is an empty file.
pub fn namespaced_bed(bed: &Path, library: &Path, folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let hidden = folder.join("hidden").join("libnccl.so.2");
    fs::create_dir_all(hidden.parent().unwrap_or(folder))?;
    fs::write(&hidden, [])?;
    let script = folder.join("namespaced-bed");
    let text = format!(
        "exec unshare --mount --pid --fork --mount-proc --kill-child sh -c 'mount --bind \"$0\" \"$1\" && shift && exec \"$@\"' \
         '{}' '{}' '{}' \"$@\"",
        library.display(),
        hidden.display(),
        bed.display()
    );
    program_files::script(&script, &text)?;
    Ok((script, hidden))
}

/// The number, in our PID namespace, of the process that such a bed is.
pub fn outer_pid(bed: &Bed) -> Result<u32> {
    let parent = bed.launcher();
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    children.split_whitespace().next().and_then(|pid| pid.parse().ok()).context("it has no child")
}

/// A program that stands for one with NCCL linked into it: it has NCCL's version string among its constants
/// and functions with the names of two of NCCL's calls. NVIDIA ships no static library that a test could
/// link. `None` without a C compiler.
pub fn program_with_nccl_inside(folder: &Path, version: &str) -> Result<Option<PathBuf>> {
    let (source, program) = (folder.join("inside.c"), folder.join("program-with-nccl-inside"));
    let text = format!(
        "#include <stdio.h>\n#include <unistd.h>\n\
         const char *ncclVersionText(void) {{ return \"NCCL version {version}+cuda12.4\"; }}\n\
         int ncclCommInitRank(void) {{ return 0; }}\nint ncclAllReduce(void) {{ return 0; }}\n\
         int main(void) {{ puts(ncclVersionText()); fflush(stdout); return pause(); }}\n"
    );
    fs::write(&source, text)?;
    match Command::new("cc").arg(&source).arg("-o").arg(&program).status() {
        Ok(status) if status.success() => Ok(Some(program)),
        Ok(status) => bail!("cc failed: {status}"),
        Err(_) => Ok(None),
    }
}

/// Starts a program and waits for its first word.
pub fn started(program: &Path) -> Result<Killed> {
    let mut child = Killed(
        Command::new(program).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("starting it")?,
    );
    let mut word = [0; 4];
    let output = child.0.stdout.as_mut().context("it has no output")?;
    std::io::Read::read_exact(output, &mut word).context("it said nothing")?;
    Ok(child)
}
