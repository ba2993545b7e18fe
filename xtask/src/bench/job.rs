//! A job on the bed: started, held before its first operation, let go, and asked how it fared.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

/// The first line of the bed's output.
#[derive(Deserialize)]
struct Ready {
    pids: Vec<u32>,
}

/// The last line of the bed's output.
#[derive(Debug, Deserialize)]
pub(crate) struct Summary {
    ok: bool,
    #[serde(default)]
    error: String,
    /// Of each rank.
    #[serde(default)]
    pub(crate) ops: u64,
    /// Of all ranks.
    #[serde(default)]
    pub(crate) launches: u64,
    #[serde(default)]
    pub(crate) seconds: f64,
}

/// A job whose communicators are up. It ends however we end.
pub(crate) struct Job {
    child: Child,
    stdout: BufReader<ChildStdout>,
    folder: PathBuf,
    pub(crate) pids: Vec<u32>,
}

impl Job {
    /// Starts the bed of the folder `programs`; its files go to `folder`.
    pub(crate) fn start(programs: &Path, library: &Path, folder: &Path, arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(programs.join("ncclflow-bed"))
            .arg("--library")
            .arg(library)
            .arg("--wait-file")
            .arg(folder.join("go"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(folder.join("bed.err"))?)
            .spawn()
            .context("starting the bed")?;
        let stdout = child.stdout.take().context("the bed has no output")?;
        let mut job = Self { child, stdout: BufReader::new(stdout), folder: folder.into(), pids: Vec::new() };
        let mut line = String::new();
        job.stdout.read_line(&mut line)?;
        let ready: Ready =
            serde_json::from_str(&line).with_context(|| format!("the bed did not come up: `{line}`"))?;
        job.pids = ready.pids;
        Ok(job)
    }

    /// As `ncclflow -p` wants them.
    pub(crate) fn pid_list(&self) -> String {
        self.pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }

    /// Lets the operations begin.
    pub(crate) fn go(&self) -> Result<()> {
        File::create(self.folder.join("go")).context("letting the job go")?;
        Ok(())
    }

    /// Waits for the end.
    pub(crate) fn finish(mut self) -> Result<Summary> {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest)?;
        self.child.wait()?;
        let last = rest.lines().last().unwrap_or_default();
        let summary: Summary =
            serde_json::from_str(last).with_context(|| format!("the bed's last line: `{last}`"))?;
        if !summary.ok {
            bail!("the job failed: {}", summary.error);
        }
        Ok(summary)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Both fail only for one that has ended. Its children ask for their death when it dies.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
