//! A running `ncclflow watch`, and its events.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use test_support::eventually;

use super::{node::Killed, schemas::assert_valid};

/// How long an event can take, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_mins(3);

/// Killed when dropped.
#[derive(Debug)]
pub struct Watcher {
    child: Killed,
    events: PathBuf,
    said: PathBuf,
    _folder: tempfile::TempDir,
}

impl Watcher {
    /// Starts it with these words, without GPUs, and waits until it watches.
    pub fn start(ncclflow: &Path, words: &str) -> Result<Self> {
        Self::start_with(ncclflow, &format!("--no-gpus {words}"), &[])
    }

    /// The same with GPUs, and with these variables.
    pub fn start_with(ncclflow: &Path, words: &str, variables: &[(String, String)]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (events, said) = (folder.path().join("events"), folder.path().join("said"));
        let child = Command::new(ncclflow)
            .args(["watch", "--json"])
            .args(words.split_whitespace())
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(File::create(&events).context("making a file for events")?)
            .stderr(File::create(&said)?)
            .spawn()
            .with_context(|| format!("starting `{}`", ncclflow.display()))?;
        let watcher = Self { child: Killed(child), events, said, _folder: folder };
        if !eventually(PATIENCE, || watcher.said().contains("watching ")) {
            bail!("it does not begin to watch: {}", watcher.said());
        }
        Ok(watcher)
    }

    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// What it has said to people until now.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Where it serves its metrics.
    pub fn metrics_address(&self) -> Option<String> {
        let said = self.said();
        let (_, rest) = said.split_once("metrics at http://")?;
        Some(rest.split_once("/metrics")?.0.to_owned())
    }

    /// Its events until now, without statuses. The last line may be on its way.
    pub fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.events).unwrap_or_default();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let events = whole.map(|line| serde_json::from_str(line).unwrap_or_default());
        let events = events.inspect(|event| assert_valid("watch", event));
        events.filter(|event: &Value| event["event"] != "status").collect()
    }

    /// Alerts and waits that began, and those that ended.
    pub fn begun_and_ended(&self) -> (Vec<Value>, Vec<Value>) {
        let of = |events: &[Value], what: &str| -> Vec<Value> {
            events.iter().filter(|event| event["event"] == what).cloned().collect()
        };
        let events = self.events();
        (of(&events, "begin"), of(&events, "end"))
    }

    /// Waits for an event of this sort and kind, and gives it back.
    pub fn hear(&self, event: &str, kind: &str) -> Result<Value> {
        let find = || self.events().into_iter().find(|one| one["event"] == event && one["kind"] == kind);
        if !eventually(PATIENCE, || find().is_some()) {
            bail!("no {event} of {kind}: {:#?} {}", self.events(), self.said());
        }
        find().context("an event is gone")
    }

    /// Waits until it has ended by itself.
    pub fn ended(mut self) -> Result<ExitStatus> {
        Ok(self.child.0.wait()?)
    }

    /// Ends it as a service is ended.
    pub fn terminate(mut self) -> Result<ExitStatus> {
        let pid = i32::try_from(self.child.pid()).ok().and_then(Pid::from_raw).context("no process")?;
        kill_process(pid, Signal::TERM).context("signalling ncclflow")?;
        Ok(self.child.0.wait()?)
    }
}
