//! `ncclflow watch --all`, beside the tracer: it sees the same tenants, keeps its dumps on the same disk, and is stopped, too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use ncclflow_e2e::harness::processes::resident_bytes;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use test_support::eventually;

use super::{check::Checks, run::shown};

/// Until it serves its metrics, and until it has ended.
const PATIENCE: Duration = Duration::from_mins(2);
/// Of its memory, in bytes: what is promised of a node with eight ranks, and what an allocator keeps. Of a program that
/// was built for tests the pages of its file alone are as many.
const MOST: u64 = if cfg!(debug_assertions) { 96 << 20 } else { 48 << 20 };

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
        let child = command.spawn().context("starting ncclflow watch")?;
        let watcher = Self { child, events, said };
        if !eventually(PATIENCE, || TcpStream::connect(metrics).is_ok()) {
            bail!("ncclflow watch serves no metrics: {}", watcher.said());
        }
        Ok(watcher)
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("signalling ncclflow watch")
    }

    /// Ends it, and judges what it did. `jobs`: processes of jobs of which none hangs.
    pub(crate) fn finish(mut self, jobs: &BTreeSet<u32>, checks: &mut Checks) -> Result<()> {
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
        let mut false_ones = Vec::new();
        for event in events.iter().filter(|event| event["event"] == "begin") {
            *begun.entry(event["kind"].as_str().unwrap_or("?")).or_default() += 1;
            let pids = event["job"]["pids"].as_array().into_iter().flatten().filter_map(Value::as_u64);
            // Other jobs of this host may hang.
            if pids.into_iter().any(|pid| u32::try_from(pid).is_ok_and(|pid| jobs.contains(&pid))) {
                false_ones.push(event["sentence"].to_string());
            }
        }
        checks.tell("watch: alerts", format!("{begun:?}"));
        checks.add("watch: alerts of jobs that run", shown(&false_ones), "0", false_ones.is_empty());
        let said = self.said();
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
