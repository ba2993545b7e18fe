//! Processes of every sort that a node can have, side by side.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::{bed::Bed, program_files, programs::compiled};

/// A child that is killed when this is dropped.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Killed {
    /// Starts a program that is talked with.
    pub fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Ok(Self(child.with_context(|| format!("starting {command:?}"))?))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its next line of output, without what ends it.
    pub fn line(&mut self) -> Result<String> {
        let output = self.0.stdout.as_mut().context("it has no output")?;
        let (mut line, mut byte) = (Vec::new(), [0]);
        while output.read(&mut byte)? == 1 {
            if byte == *b"\n" {
                return Ok(String::from_utf8(line)?);
            }
            line.push(byte[0]);
        }
        bail!("it has ended, and said `{}`", String::from_utf8_lossy(&line))
    }

    /// Tells it a line, and gives its answer.
    pub fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.0.stdin.as_mut().context("it has no input")?, "{line}")?;
        self.line()
    }

    /// Ends it.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processes as `ncclflow -p` wants them.
pub fn pid_list<'a>(processes: impl IntoIterator<Item = &'a Killed>) -> String {
    processes.into_iter().map(|process| process.pid().to_string()).collect::<Vec<_>>().join(",")
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process without NCCL.
///
/// # Panics
/// If it cannot be started.
pub fn sleeper() -> Killed {
    let sleep = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn();
    Killed(sleep.unwrap_or_else(|error| panic!("starting sleep: {error}")))
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
    let source = format!(
        "#include <stdio.h>\n#include <unistd.h>\n\
         const char *ncclVersionText(void) {{ return \"NCCL version {version}+cuda12.4\"; }}\n\
         int ncclCommInitRank(void) {{ return 0; }}\nint ncclAllReduce(void) {{ return 0; }}\n\
         int main(void) {{ puts(ncclVersionText()); fflush(stdout); return pause(); }}\n"
    );
    compiled(&source, &folder.join("program-with-nccl-inside"), &[])
}

/// Starts a program and waits for its first line.
pub fn started(program: &Path) -> Result<Killed> {
    let mut child = Killed::start(&mut Command::new(program))?;
    child.line()?;
    Ok(child)
}
