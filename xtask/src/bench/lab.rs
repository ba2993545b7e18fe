//! A job on the real NCCL, and a recording of it.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::{nccl, programs};

/// Optimised programs, an NCCL library, and a folder for what they write.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) programs: PathBuf,
    pub(crate) library: PathBuf,
    scratch: PathBuf,
    runs: u32,
}

impl Bench {
    pub(crate) fn prepare(nccl_version: &str, name: &str) -> Result<Self> {
        let library = nccl::library_path(nccl_version)?;
        let programs =
            programs::build_release(&["ncclflow", "ncclflow-bed", "ncclflow-nvml-double", "ncclflow-bench"])?;
        let scratch = std::env::temp_dir().join(format!("ncclflow-bench-{name}-{}", std::process::id()));
        fs::create_dir(&scratch).with_context(|| format!("making `{}`", scratch.display()))?;
        Ok(Self { programs, library, scratch, runs: 0 })
    }

    /// A path that is not taken.
    pub(crate) fn fresh(&mut self, name: &str) -> PathBuf {
        self.runs += 1;
        self.scratch.join(format!("{name}{}", self.runs))
    }

    /// Starts a job that waits for [`Job::go`].
    pub(crate) fn job(&mut self, arguments: &[&str]) -> Result<Job> {
        let go = self.fresh("go");
        let mut child = Command::new(self.programs.join("ncclflow-bed"))
            .arg("--library")
            .arg(&self.library)
            .arg("--wait-file")
            .arg(&go)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting the bed")?;
        let mut stdout = BufReader::new(child.stdout.take().context("the bed has no output")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let ready: Ready =
            serde_json::from_str(&line).with_context(|| format!("the bed did not come up: `{line}`"))?;
        Ok(Job { child, stdout, go, pids: ready.pids })
    }

    /// Begins to record a job.
    pub(crate) fn record(&mut self, job: &Job, arguments: &[&str]) -> Result<Recording> {
        let output = self.fresh("out");
        let pids: Vec<String> = job.pids.iter().map(u32::to_string).collect();
        let mut child = Command::new(self.programs.join("ncclflow"))
            .args(["record", "-p", &pids.join(","), "-o"])
            .arg(&output)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting ncclflow")?;
        let stderr = BufReader::new(child.stderr.take().context("ncclflow has no standard error")?);
        let mut recording = Recording { child, stderr, said: String::new(), output };
        recording.wait_for("recording to")?;
        Ok(recording)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// The first line of the bed's output.
#[derive(Debug, Deserialize)]
struct Ready {
    pids: Vec<u32>,
}

/// A job. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Job {
    child: Child,
    stdout: BufReader<ChildStdout>,
    go: PathBuf,
    pub(crate) pids: Vec<u32>,
}

impl Job {
    pub(crate) fn go(&self) -> Result<()> {
        fs::File::create(&self.go).context("telling the job to begin")?;
        Ok(())
    }

    /// Waits for the end; gives the seconds that its operations took.
    pub(crate) fn finish(self) -> Result<f64> {
        self.summary()?["seconds"].as_f64().context("the bed did not say how long it took")
    }

    /// Waits for the end; gives what the bed says of it.
    pub(crate) fn summary(mut self) -> Result<Value> {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest)?;
        self.child.wait()?;
        let summary: Value =
            serde_json::from_str(rest.trim()).with_context(|| format!("the bed: `{rest}`"))?;
        if summary["ok"] != true {
            bail!("the job failed: {summary}");
        }
        Ok(summary)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `ncclflow record`. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Recording {
    child: Child,
    stderr: BufReader<ChildStderr>,
    said: String,
    output: PathBuf,
}

/// What came of a recording.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) session: Value,
    pub(crate) said: String,
}

impl Recording {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_for(&mut self, words: &str) -> Result<()> {
        while !self.said.contains(words) {
            if self.stderr.read_line(&mut self.said)? == 0 {
                let status = self.child.wait()?;
                bail!("ncclflow ended ({status}); it needs root: {}", self.said);
            }
        }
        Ok(())
    }

    /// Whether it still goes on.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it as Ctrl-C does.
    pub(crate) fn interrupt(&self) -> Result<()> {
        signal(self.pid(), "INT")
    }

    /// Waits until it has ended by itself.
    pub(crate) fn finish(mut self) -> Result<Recorded> {
        self.stderr.read_to_string(&mut self.said)?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("ncclflow ended with {status}: {}", self.said);
        }
        let path = self.output.join("session.json");
        let text = fs::read_to_string(&path).with_context(|| format!("reading `{}`", path.display()))?;
        let recorded =
            Recorded { session: serde_json::from_str(&text)?, said: std::mem::take(&mut self.said) };
        fs::remove_dir_all(&self.output)?;
        Ok(recorded)
    }

    pub(crate) fn output(&self) -> &Path {
        &self.output
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal, by its name.
pub(crate) fn signal(pid: u32, name: &str) -> Result<()> {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    if !status.context("starting kill")?.success() {
        bail!("process {pid} could not be signalled");
    }
    Ok(())
}

/// A number in `/proc/PID/status`, in KiB; 0 once the process is gone.
pub(crate) fn status_kib(pid: u32, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Calls `look` ten times a second while it says so, at most `limit`.
pub(crate) fn watch(limit: Duration, mut look: impl FnMut() -> bool) {
    let begun = Instant::now();
    while begun.elapsed() < limit && look() {
        thread::sleep(Duration::from_millis(100));
    }
}
