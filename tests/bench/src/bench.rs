//! What benches need: optimised programs, an NCCL library, jobs on it, recordings and dumps of these.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use ncclflow_e2e::harness::recorder::Recorder;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::job::Job;

/// Optimised programs, an NCCL library, and a folder for what they write, which is removed in the end.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) programs: PathBuf,
    pub(crate) library: PathBuf,
    /// How often each measurement is made.
    pub(crate) rounds: usize,
    scratch: TempDir,
    paths: u32,
}

impl Bench {
    /// Has `cargo xtask` fetch this version of NCCL where the cache lacks it.
    pub(crate) fn new(nccl: &str, rounds: usize) -> Result<Self> {
        let xtask = env::var_os("NCCLFLOW_XTASK").context("run this by `cargo xtask bench`")?;
        let library = output(Command::new(xtask).args(["nccl", "fetch", nccl]).stderr(Stdio::inherit()))?;
        let library = String::from_utf8(library)?.trim_end().into();
        let scratch = tempfile::tempdir().context("making a folder for temporary files")?;
        Ok(Self { programs: programs()?, library, rounds, scratch, paths: 0 })
    }

    /// Returns a path that is not in use.
    pub(crate) fn fresh(&mut self, name: &str) -> PathBuf {
        self.paths += 1;
        self.scratch.path().join(format!("{name}{}", self.paths))
    }

    /// Starts a job that waits for [`Job::go`].
    pub(crate) fn job(&mut self, arguments: &str) -> Result<Job> {
        let go = self.fresh("go");
        Job::start(&self.programs, &self.library, go, &words(arguments))
    }

    /// Begins to record these processes, as `ncclflow -p` takes them.
    pub(crate) fn record(&mut self, pids: &str, arguments: &str) -> Result<Recording> {
        let output = self.fresh("out");
        let recorder = Recorder::start(&self.programs.join("ncclflow"), pids, &output, &words(arguments))?;
        Ok(Recording { recorder, output })
    }

    /// Runs `ncclflow dump --json`. Returns its time in milliseconds, and what it printed.
    pub(crate) fn dump(&self, arguments: &[&str]) -> Result<(f64, Value)> {
        let mut command = Command::new(self.programs.join("ncclflow"));
        command.args(["dump", "--json"]).args(arguments);
        let begun = Instant::now();
        // The exit code tells what was found.
        let output = command.output().context("starting ncclflow")?;
        let took = begun.elapsed().as_secs_f64() * 1e3;
        let dump = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        Ok((took, dump))
    }
}

/// A running `ncclflow record`. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Recording {
    recorder: Recorder,
    pub(crate) output: PathBuf,
}

/// A finished recording: `session.json`, and what `ncclflow` wrote to standard error.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) json: Value,
    pub(crate) said: String,
}

impl Recording {
    pub(crate) fn pid(&self) -> u32 {
        self.recorder.pid()
    }

    /// Ends the recording as Ctrl-C does.
    pub(crate) fn interrupt(self) -> Result<Session> {
        self.recorder.signal(Signal::INT)?;
        self.finish()
    }

    /// Waits until the recording has ended by itself.
    pub(crate) fn finish(self) -> Result<Session> {
        let (status, said) = self.recorder.finish()?;
        ensure!(status.success(), "ncclflow ended with {status}: {said}");
        let path = self.output.join("session.json");
        let text = fs::read_to_string(&path).with_context(|| format!("reading `{}`", path.display()))?;
        Ok(Session { json: serde_json::from_str(&text)?, said })
    }
}

impl Session {
    /// Returns the records of all probes that user space received.
    pub(crate) fn records_delivered(&self) -> u64 {
        let probes = self.json["probes"].as_array().into_iter().flatten();
        probes.filter_map(|probe| probe["delivered"].as_u64()).sum()
    }
}

fn words(arguments: &str) -> Vec<&str> {
    arguments.split_whitespace().collect()
}

/// Returns the folder of the optimised programs, which has this one, too.
pub(crate) fn programs() -> Result<PathBuf> {
    let here = env::current_exe().context("finding our own program")?;
    Ok(here.parent().context("our own program is in no folder")?.to_path_buf())
}

/// Makes a folder beside the programs' anew: what is in it can be looked at afterwards.
pub(crate) fn kept_folder(name: &str) -> Result<PathBuf> {
    let folder = programs()?.with_file_name(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing `{}`", folder.display()))?;
    }
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Returns the path of a file of the repository's tests.
pub(crate) fn of_tests(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(file)
}

/// Runs a program to its end and returns its standard output. An error has what it wrote to standard error.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("starting `{program}`"))?;
    if !output.status.success() {
        bail!("`{program}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}
