//! A job on the real NCCL, and a recording of it.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{job::Job, nccl, programs, tool};

/// Optimised programs, an NCCL library, and a folder for what they write.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) programs: PathBuf,
    pub(crate) library: PathBuf,
    scratch: Scratch,
    runs: u32,
}

/// A temporary folder, removed when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(bench: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("ncclflow-bench-{bench}-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("making `{}`", folder.display()))?;
        Ok(Self(folder))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Bench {
    pub(crate) fn prepare(nccl_version: &str, name: &str) -> Result<Self> {
        let library = nccl::library_path(nccl_version)?;
        let programs =
            programs::build_release(&["ncclflow", "ncclflow-bed", "ncclflow-nvml-double", "ncclflow-bench"])?;
        Ok(Self { programs, library, scratch: Scratch::new(name)?, runs: 0 })
    }

    /// Returns a path that is not in use.
    pub(crate) fn fresh(&mut self, name: &str) -> PathBuf {
        self.runs += 1;
        self.scratch.path(&format!("{name}{}", self.runs))
    }

    /// Starts a job that waits for [`WaitingJob::go`].
    pub(crate) fn job(&mut self, arguments: &[&str]) -> Result<WaitingJob> {
        let go = self.fresh("go");
        let wait_file = go.display().to_string();
        let arguments = [&["--wait-file", &wait_file], arguments].concat();
        let errors = self.fresh("bed-errors");
        let stderr = fs::File::create(&errors)?.into();
        let job = Job::start(&self.programs, &self.library, &arguments, stderr)
            .with_context(|| fs::read_to_string(&errors).unwrap_or_default())?;
        Ok(WaitingJob { job, go })
    }

    /// Begins to record a job.
    pub(crate) fn record(&mut self, job: &WaitingJob, arguments: &[&str]) -> Result<Recording> {
        self.record_pids(&job.pid_list(), arguments)
    }

    /// Begins to record these processes, as `ncclflow -p` takes them.
    pub(crate) fn record_pids(&mut self, pids: &str, arguments: &[&str]) -> Result<Recording> {
        let output = self.fresh("out");
        let mut child = Command::new(self.programs.join("ncclflow"))
            .args(["record", "-p", pids, "-o"])
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

/// A job that does nothing until it is told to begin. Killed when dropped.
#[derive(Debug)]
pub(crate) struct WaitingJob {
    job: Job,
    /// File that makes the job begin once it is there.
    go: PathBuf,
}

impl WaitingJob {
    pub(crate) fn pids(&self) -> &[u32] {
        &self.job.pids
    }

    /// Returns the process ids, as `ncclflow -p` takes them.
    pub(crate) fn pid_list(&self) -> String {
        self.job.pid_list()
    }

    pub(crate) fn go(&self) -> Result<()> {
        fs::File::create(&self.go).context("telling the job to begin")?;
        Ok(())
    }

    /// Waits for the end. Returns the seconds that its operations took.
    pub(crate) fn finish(self) -> Result<f64> {
        self.summary()?["seconds"].as_f64().context("the bed did not say how long it took")
    }

    /// Waits for the end. Returns the bed's last line.
    pub(crate) fn summary(mut self) -> Result<Value> {
        let rest = self.job.rest()?;
        let summary: Value =
            serde_json::from_str(rest.trim()).with_context(|| format!("the bed: `{rest}`"))?;
        if summary["ok"] != true {
            bail!("the job failed: {summary}");
        }
        Ok(summary)
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

/// A finished recording: `session.json`, and what `ncclflow` wrote to standard error.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) session: Value,
    pub(crate) said: String,
}

impl Recorded {
    /// Returns the records of all probes that user space received.
    pub(crate) fn records_delivered(&self) -> u64 {
        let probes = self.session["probes"].as_array().into_iter().flatten();
        probes.filter_map(|probe| probe["delivered"].as_u64()).sum()
    }
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

    /// Tells whether the recording has not ended yet.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends the recording as Ctrl-C does.
    pub(crate) fn interrupt(&self) -> Result<()> {
        signal(self.pid(), "INT")
    }

    /// Waits until the recording has ended by itself, and removes it.
    pub(crate) fn finish(self) -> Result<Recorded> {
        let (recorded, output) = self.finish_keeping()?;
        fs::remove_dir_all(output)?;
        Ok(recorded)
    }

    /// Waits until the recording has ended by itself. Returns its folder, too.
    pub(crate) fn finish_keeping(mut self) -> Result<(Recorded, PathBuf)> {
        self.stderr.read_to_string(&mut self.said)?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("ncclflow ended with {status}: {}", self.said);
        }
        let path = self.output.join("session.json");
        let text = fs::read_to_string(&path).with_context(|| format!("reading `{}`", path.display()))?;
        let recorded =
            Recorded { session: serde_json::from_str(&text)?, said: std::mem::take(&mut self.said) };
        Ok((recorded, std::mem::take(&mut self.output)))
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
    tool::run(Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()), "a signal")
}

/// Reads a number in `/proc/PID/status`, in KiB; 0 once the process is gone.
pub(crate) fn status_kib(pid: u32, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Calls `look` ten times a second while it returns true, for at most `limit`.
pub(crate) fn watch(limit: Duration, mut look: impl FnMut() -> bool) {
    let begun = Instant::now();
    while begun.elapsed() < limit && look() {
        thread::sleep(Duration::from_millis(100));
    }
}
