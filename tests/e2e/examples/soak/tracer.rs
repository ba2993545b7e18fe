//! `ncclflow record --all`, and what the system says of it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use ncclflow_e2e::harness::{
    processes::{anonymous_bytes, resident_bytes},
    rows::are_traced,
    thread_sleeps::thread_sleeps,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;

/// Until its probes are armed, and until it has ended.
const PATIENCE: Duration = Duration::from_mins(2);
/// Until what it leaves to the kernel is gone: some of that is freed only after others have come to rest.
pub(crate) const FREED: Duration = Duration::from_mins(1);

/// Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Tracer {
    child: Child,
    output: PathBuf,
    said: PathBuf,
}

/// A process, which its number alone does not name: the start is in ticks since the system was started.
pub(crate) type Named = (u32, u64);

impl Tracer {
    /// Starts it with small buffers, so that they are full at times, and gives it back at once.
    pub(crate) fn start(
        ncclflow: &Path,
        output: &Path,
        said: &Path,
        metrics: Option<SocketAddr>,
    ) -> Result<Self> {
        let mut command = Command::new(ncclflow);
        command.args(["record", "--all", "--api", "--quiet", "--no-cache", "--buffer-size", "1"]);
        // Files of lines are made of the recording at any time; the small disk is for the recording.
        command.args(["--files", "none", "-o"]).arg(output);
        if let Some(address) = metrics {
            command.args(["--metrics", &address.to_string()]);
        }
        let stderr = File::create(said)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn();
        let child = child.context("starting ncclflow")?;
        Ok(Self { child, output: output.to_path_buf(), said: said.to_path_buf() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn output(&self) -> &Path {
        &self.output
    }

    pub(crate) fn session(&self) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.output.join("session.json")).ok()?).ok()
    }

    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Waits until its probes are armed.
    pub(crate) fn armed(&mut self) -> Result<()> {
        self.wait_until("armed", |session| session["attach"]["armed_monotonic_ns"].is_u64())
    }

    /// Waits until it has this process in its report, as one that is traced.
    pub(crate) fn traces(&mut self, pid: u32) -> Result<()> {
        self.wait_until("tracing", |session| are_traced(session, &[pid]))
    }

    /// Whether it has these processes in its report, as such that are traced.
    pub(crate) fn follows(&self, pids: &[u32]) -> bool {
        self.session().is_some_and(|session| are_traced(&session, pids))
    }

    /// Processes that it follows now, besides this one.
    pub(crate) fn others(&self, known: u32) -> usize {
        let session = self.session().unwrap_or_default();
        let targets = session["targets"].as_array().into_iter().flatten();
        targets.filter(|target| target["exited"] == false && target["pid"] != known).count()
    }

    /// Library files that its report tells of.
    pub(crate) fn libraries(&self) -> u64 {
        let session = self.session().unwrap_or_default();
        session["libraries"].as_array().map_or(0, |libraries| libraries.len() as u64)
    }

    fn wait_until(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.session().is_some_and(|session| is_so(&session)) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("ncclflow ended with {status} before it was {what}: {}", self.said());
            }
            if Instant::now() > deadline {
                bail!("ncclflow is not {what} after {PATIENCE:?}: {}", self.said());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("signalling ncclflow")
    }

    /// Stops it, and waits until all its threads stand.
    pub(crate) fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        // One that ends instead is left to who waits for its end.
        let events = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), events).context("waiting until ncclflow stands")?;
        Ok(())
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("ncclflow does not end: {}", self.said());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Bytes of memory that it has, of its own and of files.
    pub(crate) fn resident(&self) -> u64 {
        resident_bytes(self.pid())
    }

    /// Of these, its own.
    pub(crate) fn anonymous(&self) -> u64 {
        anonymous_bytes(self.pid())
    }

    /// Bytes of its program's file, which can be resident and are nobody's growth.
    pub(crate) fn program_size(&self) -> u64 {
        fs::metadata(format!("/proc/{}/exe", self.pid())).map_or(0, |about| about.len())
    }

    /// How often its threads went to sleep, which is how often they were woken.
    pub(crate) fn sleeps(&self) -> u64 {
        thread_sleeps(self.pid()).unwrap_or_default().values().sum()
    }

    /// How long its threads have waited for a processor that others had, together: the second number of
    /// `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst), in nanoseconds.
    pub(crate) fn starved(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let of_task = |task: fs::DirEntry| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
        };
        Duration::from_nanos(tasks.filter_map(of_task).sum())
    }

    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count)
    }

    /// Itself and its descendants.
    pub(crate) fn family(&self) -> Vec<Named> {
        let all = processes();
        let mut family = vec![self.pid()];
        let mut at = 0;
        while let Some(parent) = family.get(at).copied() {
            family.extend(all.iter().filter(|(_, stat)| stat.parent == parent).map(|(pid, _)| *pid));
            at += 1;
        }
        let started = |pid: u32| Some((pid, all.get(&pid)?.started));
        family.into_iter().filter_map(started).collect()
    }

    /// Processor time of the family, of those that it has waited for, too.
    pub(crate) fn processor_time(&self) -> Duration {
        let all = processes();
        let family = self.family();
        let ticks: u64 = family.iter().filter_map(|(pid, _)| Some(all.get(pid)?.ticks)).sum();
        Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Stat {
    parent: u32,
    started: u64,
    ticks: u64,
    is_dead: bool,
}

/// All processes, by proc_pid_stat(5).
fn processes() -> BTreeMap<u32, Stat> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, stat(pid)?))).collect()
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and can have more of them.
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        parent: u32::try_from(number(4)?).ok()?,
        started: number(22)?,
        ticks: number(14)? + number(15)? + number(16)? + number(17)?,
        is_dead: fields.first().is_some_and(|state| matches!(*state, "Z" | "X")),
    })
}

/// Those of these processes that are still there when they have had time to end.
pub(crate) fn still_there(named: &[Named]) -> Vec<Named> {
    let is_there =
        |(pid, started): &Named| stat(*pid).is_some_and(|stat| stat.started == *started && !stat.is_dead);
    let deadline = Instant::now() + FREED;
    loop {
        let left: Vec<Named> = named.iter().copied().filter(|named| is_there(named)).collect();
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Whether another ncclflow runs on this machine: it has probes of its own on the same files.
pub(crate) fn is_alone(family: &[Named]) -> bool {
    let is_other = |pid: u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim_end() == "ncclflow" && !family.iter().any(|(ours, _)| *ours == pid)
    };
    !processes().into_keys().any(is_other)
}

/// Processes that were ever started on this machine: `processes` of proc_stat(5).
pub(crate) fn forks() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("processes "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}
