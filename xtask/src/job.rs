//! A job on the real NCCL, without a GPU.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// A running bed whose communicators are up. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Job {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) pids: Vec<u32>,
    /// First line of the bed's output.
    pub(crate) first_line: String,
}

#[derive(Deserialize)]
struct Ready {
    pids: Vec<u32>,
}

impl Job {
    /// Starts the bed of `programs`, and waits until its communicators are up.
    pub(crate) fn start<S: AsRef<str>>(
        programs: &Path,
        library: &Path,
        arguments: &[S],
        stderr: Stdio,
    ) -> Result<Self> {
        let mut child = Command::new(programs.join("ncclflow-bed"))
            .arg("--library")
            .arg(library)
            .args(arguments.iter().map(AsRef::as_ref))
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .context("starting the bed")?;
        let stdout = BufReader::new(child.stdout.take().context("the bed has no output")?);
        let mut job = Self { child, stdout, pids: Vec::new(), first_line: String::new() };
        job.stdout.read_line(&mut job.first_line)?;
        let ready: Ready = serde_json::from_str(&job.first_line)
            .with_context(|| format!("the bed did not come up: `{}`", job.first_line))?;
        job.pids = ready.pids;
        Ok(job)
    }

    /// Returns the process ids, as `ncclflow -p` takes them.
    pub(crate) fn pid_list(&self) -> String {
        self.pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }

    /// Waits for the end. Returns the rest of the bed's output.
    pub(crate) fn rest(&mut self) -> Result<String> {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest)?;
        self.child.wait()?;
        Ok(rest)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
