//! `ncclflow watch --all`, beside the tracer: it sees the same tenants, keeps its dumps on the same disk, and is stopped, too.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use ncclflow_e2e::harness::processes::resident_bytes;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use test_support::eventually;

use super::check::Checks;

/// Until it has ended.
const PATIENCE: Duration = Duration::from_mins(2);
/// Of its memory, in bytes: what is promised of a node with eight ranks, and what an allocator keeps.
const MOST: u64 = 48 << 20;

/// Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    child: Child,
    events: PathBuf,
    said: PathBuf,
}

impl Watcher {
    /// Its events are not on the small disk, which is full at times; its dumps are.
    pub(crate) fn start(ncclflow: &Path, folder: &Path, dumps: &Path, metrics: SocketAddr) -> Result<Self> {
        let (events, said) = (folder.join("events"), folder.join("watch.said"));
        let mut command = Command::new(ncclflow);
        command.args(["watch", "--all", "--json", "--metrics", &metrics.to_string()]);
        command.args(["--max-dump-size", "32M", "--dump-to"]).arg(dumps);
        command.stdin(Stdio::null()).stdout(File::create(&events)?).stderr(File::create(&said)?);
        Ok(Self { child: command.spawn().context("starting ncclflow watch")?, events, said })
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("signalling ncclflow watch")
    }

    /// Ends it, and judges what it did. No job hangs, and none of its ranks is killed.
    pub(crate) fn finish(mut self, checks: &mut Checks) -> Result<()> {
        let resident = resident_bytes(self.child.id());
        let most = format!("≤ {}", MOST >> 20);
        checks.add("watch: memory at the end (MiB)", resident >> 20, most, resident <= MOST);
        self.signal(Signal::INT)?;
        if !eventually(PATIENCE, || self.child.try_wait().is_ok_and(|status| status.is_some())) {
            bail!("ncclflow watch does not end");
        }
        let status = self.child.wait()?;
        checks.add("watch: exit", status, "0", status.success());
        let text = fs::read_to_string(&self.events)?;
        let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let broken = text.lines().count() - events.len();
        checks.add("watch: lines that are no event", broken, "0", broken == 0);
        let mut begun: BTreeMap<&str, u64> = BTreeMap::new();
        for event in events.iter().filter(|event| event["event"] == "begin") {
            *begun.entry(event["kind"].as_str().unwrap_or("?")).or_default() += 1;
        }
        let of_jobs: u64 = begun.iter().filter(|(kind, _)| **kind != "blind").map(|(_, count)| count).sum();
        checks.add("watch: alerts of jobs", format!("{begun:?}"), "none but blind", of_jobs == 0);
        let said = fs::read_to_string(&self.said)?;
        if !said.is_empty() {
            println!("ncclflow watch said:\n{}", said.trim());
        }
        Ok(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
