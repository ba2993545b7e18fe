//! A running `ncclflow record`.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{ChildStderr, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, kill_process},
};

use super::{node::Killed, programs};

/// How long it can take to say what is waited for, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_mins(1);

/// A recording that is armed. Killed when dropped.
#[derive(Debug)]
pub struct Recorder {
    child: Killed,
    stderr: BufReader<ChildStderr>,
    said: String,
}

impl Recorder {
    /// Starts a recording of `pids` into `output` and waits until its probes are armed.
    pub fn start(ncclflow: &Path, pids: &str, output: &Path, arguments: &[&str]) -> Result<Self> {
        Self::start_of(ncclflow, &["-p", pids], output, arguments, &[])
    }

    /// The same with further variables in its environment.
    pub fn start_in(
        ncclflow: &Path,
        pids: &str,
        output: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        Self::start_of(ncclflow, &["-p", pids], output, arguments, environment)
    }

    /// The same of all processes of the node that `arguments` do not filter out.
    pub fn start_all(ncclflow: &Path, output: &Path, arguments: &[&str]) -> Result<Self> {
        Self::start_of(ncclflow, &["--all"], output, arguments, &[])
    }

    /// The same with these words as options, in the usual environment.
    pub fn of_node(output: &Path, options: &str) -> Result<Self> {
        let options: Vec<&str> = options.split_whitespace().collect();
        Self::start_all(&programs::ncclflow().context("no ncclflow")?, output, &options)
    }

    fn start_of(
        ncclflow: &Path,
        whom: &[&str],
        output: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        let child = Command::new(ncclflow)
            .arg("record")
            .args(whom)
            .arg("-o")
            .arg(output)
            .args(arguments)
            // What earlier runs have left on this machine is no business of a test's.
            .args((!arguments.contains(&"--cache-dir")).then_some("--no-cache"))
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting `{}`", ncclflow.display()))?;
        let mut child = Killed(child);
        let stderr = child.0.stderr.take().context("ncclflow has no standard error")?;
        let mut recorder = Self { child, stderr: BufReader::new(stderr), said: String::new() };
        while !recorder.said.contains("recording to") {
            if recorder.stderr.read_line(&mut recorder.said)? == 0 {
                let status = recorder.child.0.wait()?;
                bail!("ncclflow did not begin to record ({status}): {}", recorder.said);
            }
        }
        Ok(recorder)
    }

    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Where it serves its metrics.
    pub fn metrics_address(&self) -> Option<&str> {
        let (_, rest) = self.said.split_once("metrics at http://")?;
        Some(rest.split_once("/metrics")?.0)
    }

    /// What it has said until its probes were armed, or until what was waited for last.
    #[must_use]
    pub fn said(&self) -> &str {
        &self.said
    }

    /// Waits until it has said these words.
    pub fn hear(&mut self, words: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.said.contains(words) {
            if self.stderr.buffer().is_empty() {
                let left = deadline.saturating_duration_since(Instant::now());
                let mut fds = [PollFd::new(self.stderr.get_ref(), PollFlags::IN)];
                if poll(&mut fds, Some(&Timespec::try_from(left)?))? == 0 {
                    bail!("ncclflow did not say `{words}` in {PATIENCE:?}: {}", self.said);
                }
            }
            if self.stderr.read_line(&mut self.said)? == 0 {
                bail!("ncclflow ended and did not say `{words}`: {}", self.said);
            }
        }
        Ok(())
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.pid()).ok().and_then(Pid::from_raw).context("no process")?;
        kill_process(pid, signal).context("signalling ncclflow")
    }

    /// Waits for the end; gives back all that was said on standard error.
    pub fn finish(mut self) -> Result<(ExitStatus, String)> {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest)?;
        let status = self.child.0.wait()?;
        self.said.push_str(&rest);
        Ok((status, std::mem::take(&mut self.said)))
    }

    /// Ends the recording as Ctrl-C does, which must succeed; gives back all that was said.
    pub fn interrupt(self) -> Result<String> {
        self.signal(Signal::INT)?;
        self.end()
    }

    /// Waits for the end, which must be a success; gives back all that was said.
    pub fn end(self) -> Result<String> {
        let (status, said) = self.finish()?;
        if !status.success() {
            bail!("ncclflow ended with {status}: {said}");
        }
        Ok(said)
    }
}
