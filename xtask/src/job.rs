//! A job on the real NCCL, without a GPU. (`tests/bench` has this file, too.)

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

/// A running bed whose communicators are up, and which waits for [`Job::go`]. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Job {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// File that makes the job begin once it is there.
    go: PathBuf,
    pub(crate) pids: Vec<u32>,
    /// First line of the bed's output.
    pub(crate) first_line: String,
}

#[derive(Deserialize)]
struct Ready {
    pids: Vec<u32>,
}

impl Job {
    /// Starts the bed of `programs`, and waits until its communicators are up. `go`: a file that is not
    /// there.
    pub(crate) fn start(programs: &Path, library: &Path, go: PathBuf, arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(programs.join("ncclflow-bed"))
            .arg("--library")
            .arg(library)
            .arg("--wait-file")
            .arg(&go)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the bed")?;
        let stdout = BufReader::new(child.stdout.take().context("the bed has no output")?);
        let mut job = Self { child, stdout, go, pids: Vec::new(), first_line: String::new() };
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

    pub(crate) fn go(&self) -> Result<()> {
        fs::File::create(&self.go).context("telling the job to begin")?;
        Ok(())
    }

    /// Waits for the end. Returns the bed's last line.
    pub(crate) fn summary(mut self) -> Result<Value> {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest)?;
        let summary: Value =
            serde_json::from_str(rest.trim()).with_context(|| format!("the bed's last line: `{rest}`"))?;
        ensure!(summary["ok"] == true, "the job failed: {summary}");
        Ok(summary)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
