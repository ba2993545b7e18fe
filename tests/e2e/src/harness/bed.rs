//! A running bed: real NCCL, waiting for the word to begin.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

/// The first line of the bed's output.
#[derive(Debug, Clone, Deserialize)]
pub struct Ready {
    pub nccl: String,
    pub nranks: u32,
    pub pids: Vec<u32>,
    /// 16 hex digits; as NCCL has it.
    #[serde(rename = "commHash")]
    pub comm_hash: String,
}

/// The last line of the bed's output.
#[derive(Debug, Clone, Deserialize)]
pub struct Summary {
    /// All data was right.
    pub ok: bool,
    #[serde(default)]
    pub checked_elements: u64,
}

/// A bed whose communicators are up. It is killed when this is dropped.
#[derive(Debug)]
pub struct Bed {
    child: Child,
    stdout: BufReader<ChildStdout>,
    folder: PathBuf,
    pub ready: Ready,
}

impl Bed {
    /// Starts the bed in `folder` (files of its run go there) and waits until its communicators are up.
    pub fn start(program: &Path, library: &Path, folder: &Path, arguments: &[&str]) -> Result<Self> {
        let errors = File::create(folder.join("bed.err")).context("making a file for the bed's errors")?;
        let mut child = Command::new(program)
            .arg("--library")
            .arg(library)
            .arg("--wait-file")
            .arg(folder.join("go"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting `{}`", program.display()))?;
        let stdout = child.stdout.take().context("the bed has no output")?;
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout.read_line(&mut line).context("reading the bed's output")?;
        let Ok(ready) = serde_json::from_str(&line) else {
            let status = child.wait()?;
            let errors = fs::read_to_string(folder.join("bed.err")).unwrap_or_default();
            bail!("the bed did not come up ({status}): `{line}`\n{errors}");
        };
        Ok(Self { child, stdout, folder: folder.to_path_buf(), ready })
    }

    /// The processes, as `ncclflow -p` wants them.
    pub fn pid_list(&self) -> String {
        self.ready.pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }

    /// The process that was started: the bed itself, or whatever starts it.
    pub fn launcher(&self) -> u32 {
        self.child.id()
    }

    /// Lets the operations begin.
    pub fn go(&self) -> Result<()> {
        File::create(self.folder.join("go")).context("making the bed's go file")?;
        Ok(())
    }

    /// Waits for the end of the operations, of a bed that stays then (`--hold-file`).
    pub fn wait_for_operations(&mut self) -> Result<Summary> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).context("reading the bed's output")?;
        serde_json::from_str(&line).with_context(|| format!("the bed's second line: `{line}`"))
    }

    /// Waits for the end.
    pub fn finish(&mut self) -> Result<(ExitStatus, Summary)> {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest)?;
        let status = self.child.wait()?;
        let errors = || fs::read_to_string(self.folder.join("bed.err")).unwrap_or_default();
        let last =
            rest.lines().last().with_context(|| format!("the bed said nothing ({status}):\n{}", errors()))?;
        let summary = serde_json::from_str(last).with_context(|| format!("the bed's last line: `{last}`"))?;
        Ok((status, summary))
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Its children go with it: the bed asks for their death when it dies.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
