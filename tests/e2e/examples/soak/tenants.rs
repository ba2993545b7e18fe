//! Hundreds of short processes a minute on a library that stays as it is. Some are stopped, some are killed.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};
use test_support::damage::Random;

use super::{
    ledger::Ledger,
    tenant::{Order, Trick},
};

/// Between two starts: 300 a minute, and their children.
const PACE: Duration = Duration::from_millis(200);
/// At the same time, so that a small machine stays usable.
const MOST: usize = 16;
/// A process that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Tenant {
    child: Child,
    trick: Trick,
    started: Instant,
    stop_at: Option<Instant>,
    go_on_at: Option<Instant>,
    kill_at: Option<Instant>,
    is_killed: bool,
}

/// What became of them.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    pub(crate) started: u64,
    pub(crate) stopped: u64,
    pub(crate) killed: u64,
    /// Those that ended otherwise than they should: how.
    pub(crate) failed: Vec<String>,
    pub(crate) by_trick: BTreeMap<&'static str, u64>,
}

pub(crate) struct Tenants {
    library: PathBuf,
    ledger: Ledger,
    random: Random,
    running: Vec<Tenant>,
    next: Instant,
    pub(crate) fates: Fates,
}

impl Tenants {
    pub(crate) fn new(library: PathBuf, ledger: Ledger, seed: u64) -> Self {
        let fates = Fates::default();
        let (running, next) = (Vec::new(), Instant::now());
        Self { library, ledger, random: Random(seed), running, next, fates }
    }

    /// Starts, stops, kills and buries whoever it is time for.
    pub(crate) fn step(&mut self) -> Result<()> {
        let now = Instant::now();
        self.tend(now)?;
        if now >= self.next && self.running.len() < MOST {
            self.next = now + PACE;
            self.start(now)?;
        }
        Ok(())
    }

    /// No more come; waits until all have ended.
    pub(crate) fn wait(&mut self) -> Result<()> {
        while !self.running.is_empty() {
            self.tend(Instant::now())?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn start(&mut self, now: Instant) -> Result<()> {
        let trick = Trick::CALLING[self.random.below(Trick::CALLING.len())];
        let mut millis = |most: usize| Duration::from_millis(self.random.below(most) as u64);
        let (hold, stop, pause, kill) = (millis(1500), millis(800), millis(1000), millis(900));
        // Some call so often that small buffers are full before anybody has come.
        let calls = if self.random.below(12) == 0 { 2000 } else { 1 + self.random.below(60) as u64 };
        let fate = self.random.below(10);
        let order = Order { trick, library: &self.library, ledger: Some(&self.ledger), calls, hold };
        let mut command = order.command()?;
        // NCCL tells each call that it refuses, if it is asked to.
        let child = command.env_remove("NCCL_DEBUG").stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        self.fates.started += 1;
        *self.fates.by_trick.entry(trick.name()).or_default() += 1;
        self.running.push(Tenant {
            child,
            trick,
            started: now,
            stop_at: (fate == 0).then_some(now + stop),
            go_on_at: (fate == 0).then_some(now + stop + pause),
            kill_at: (fate == 1).then_some(now + kill),
            is_killed: false,
        });
        Ok(())
    }

    fn tend(&mut self, now: Instant) -> Result<()> {
        let mut at = 0;
        while let Some(tenant) = self.running.get_mut(at) {
            if let Some(status) = tenant.child.try_wait()? {
                if !status.success() && !tenant.is_killed {
                    self.fates.failed.push(format!("{:?}: {status}", tenant.trick));
                }
                self.running.swap_remove(at);
                continue;
            }
            let pid = Pid::from_child(&tenant.child);
            let is_due = |moment: &mut Option<Instant>| moment.take_if(|at| *at <= now).is_some();
            if is_due(&mut tenant.stop_at) {
                let _ = kill_process(pid, Signal::STOP);
                self.fates.stopped += 1;
            }
            if is_due(&mut tenant.go_on_at) {
                let _ = kill_process(pid, Signal::CONT);
            }
            if is_due(&mut tenant.kill_at) {
                let _ = kill_process(pid, Signal::KILL);
                (tenant.is_killed, self.fates.killed) = (true, self.fates.killed + 1);
            }
            if now.duration_since(tenant.started) > PATIENCE && !tenant.is_killed {
                self.fates.failed.push(format!("{:?}: it does not end", tenant.trick));
                let _ = kill_process(pid, Signal::KILL);
                tenant.is_killed = true;
            }
            at += 1;
        }
        Ok(())
    }
}

impl Drop for Tenants {
    fn drop(&mut self) {
        for tenant in &mut self.running {
            let _ = tenant.child.kill();
            let _ = tenant.child.wait();
        }
    }
}
