//! A running `ncclflow top --once --json`.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{ChildStderr, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{node::Killed, schemas::assert_valid};

/// One that watches. Killed when dropped.
#[derive(Debug)]
pub struct Top {
    child: Killed,
    stderr: BufReader<ChildStderr>,
}

impl Top {
    /// Starts it on `pids` and waits until its probes are armed.
    pub fn start(ncclflow: &Path, pids: &str, arguments: &[&str]) -> Result<Self> {
        Self::watching(ncclflow, [OsStr::new("-p"), pids.as_ref()], arguments)
    }

    /// Starts it on a recording that goes on, and waits until it has read what is there.
    pub fn of_recording(ncclflow: &Path, recording: &Path, arguments: &[&str]) -> Result<Self> {
        Self::watching(ncclflow, [OsStr::new("--recording"), recording.as_ref()], arguments)
    }

    fn watching(ncclflow: &Path, what: [&OsStr; 2], arguments: &[&str]) -> Result<Self> {
        let child = Command::new(ncclflow)
            .args(["top", "--once", "--json"])
            .args(what)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting `{}`", ncclflow.display()))?;
        let mut child = Killed(child);
        let mut stderr = BufReader::new(child.0.stderr.take().context("top has no standard error")?);
        let mut said = String::new();
        while !said.contains("watching for") {
            if stderr.read_line(&mut said)? == 0 {
                bail!("top did not begin: {said}");
            }
        }
        Ok(Self { child, stderr })
    }

    /// Waits for its report.
    pub fn finish(mut self) -> Result<Value> {
        let (mut text, mut said) = (String::new(), String::new());
        self.child.0.stdout.take().context("top has no output")?.read_to_string(&mut text)?;
        self.stderr.read_to_string(&mut said)?;
        let status = self.child.0.wait()?;
        if !status.success() {
            bail!("top ended with {status}: {said}");
        }
        let report = serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))?;
        assert_valid("top", &report);
        Ok(report)
    }
}
