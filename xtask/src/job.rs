//! A job on the real NCCL, without a GPU.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// A running bed whose communicators are up. It ends however we end.
pub(crate) struct Job {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) pids: Vec<u32>,
    /// The first line of its output.
    pub(crate) said: String,
}

#[derive(Deserialize)]
struct Ready {
    pids: Vec<u32>,
}

impl Job {
    /// Starts the bed of `programs`, and waits until it is up.
    pub(crate) fn start<S: AsRef<str>>(programs: &Path, library: &Path, arguments: &[S]) -> Result<Self> {
        let mut child = Command::new(programs.join("ncclflow-bed"))
            .arg("--library")
            .arg(library)
            .args(arguments.iter().map(AsRef::as_ref))
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the bed")?;
        let stdout = BufReader::new(child.stdout.take().context("the bed has no output")?);
        let mut job = Self { child, stdout, pids: Vec::new(), said: String::new() };
        job.stdout.read_line(&mut job.said)?;
        let ready: Ready = serde_json::from_str(&job.said)
            .with_context(|| format!("the bed did not come up: `{}`", job.said))?;
        job.pids = ready.pids;
        Ok(job)
    }

    /// The rest of its output, when it has ended.
    pub(crate) fn rest(&mut self) -> Result<String> {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest)?;
        Ok(rest)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
