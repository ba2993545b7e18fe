//! A running bed: real NCCL, waiting for the word to begin.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{ChildStdout, Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::node::Killed;

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
    // Its children go with it: the bed asks for their death when it dies.
    child: Killed,
    stdout: BufReader<ChildStdout>,
    folder: PathBuf,
    pub ready: Ready,
}

impl Bed {
    /// Starts the bed in `folder` (files of its run go there) and waits until its communicators are up.
    pub fn start(program: &Path, library: &Path, folder: &Path, arguments: &[&str]) -> Result<Self> {
        let errors = File::create(folder.join("bed.err")).context("making a file for the bed's errors")?;
        let child = Command::new(program)
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
        let mut child = Killed(child);
        let stdout = child.0.stdout.take().context("the bed has no output")?;
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout.read_line(&mut line).context("reading the bed's output")?;
        let Ok(ready) = serde_json::from_str(&line) else {
            let status = child.0.wait()?;
            let errors = fs::read_to_string(folder.join("bed.err")).unwrap_or_default();
            bail!("the bed did not come up ({status}): `{line}`\n{errors}");
        };
        Ok(Self { child, stdout, folder: folder.to_path_buf(), ready })
    }

    /// Starts it with the words of `workload`, in which `{}` is the folder. Makes the folder.
    pub fn of_words(program: &Path, library: &Path, folder: &Path, workload: &str) -> Result<Self> {
        let place = folder.display().to_string();
        for name in ["", "log", "truth"] {
            if name.is_empty() || workload.contains(&format!("{{}}/{name}")) {
                fs::create_dir_all(folder.join(name)).context("making the job's folder")?;
            }
        }
        let words = workload.split_whitespace();
        let words: Vec<String> = words.map(|word| word.replace("{}", &place)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Self::start(program, library, folder, &words)
    }

    /// The processes, as `ncclflow -p` wants them.
    pub fn pid_list(&self) -> String {
        self.ready.pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }

    /// The process that was started: the bed itself, or whatever starts it.
    pub fn launcher(&self) -> u32 {
        self.child.pid()
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

    /// Waits for the end, at which all data must be right.
    ///
    /// # Panics
    /// If it is not.
    #[track_caller]
    pub fn end(&mut self) {
        let ended = self.finish();
        assert!(ended.as_ref().is_ok_and(|(status, summary)| status.success() && summary.ok), "{ended:?}");
    }

    /// Waits for the end.
    pub fn finish(&mut self) -> Result<(ExitStatus, Summary)> {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest)?;
        let status = self.child.0.wait()?;
        let errors = || fs::read_to_string(self.folder.join("bed.err")).unwrap_or_default();
        let last =
            rest.lines().last().with_context(|| format!("the bed said nothing ({status}):\n{}", errors()))?;
        let summary = serde_json::from_str(last).with_context(|| format!("the bed's last line: `{last}`"))?;
        Ok((status, summary))
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.0.try_wait(), Ok(None))
    }
}
