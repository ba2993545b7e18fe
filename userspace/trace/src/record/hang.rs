//! `--on-hang`: when no probe is hit for some time, a dump shows what every communicator is doing. Processes
//! that were named are judged together, as they are one job; under `--all` each by itself (`stillness`), but
//! between windows, when no record tells who was hit.

use std::{
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use rustix::time::ClockId;

use super::{
    mailbox::{EventSender, SessionEvent},
    stillness::{Member, Stillness},
};
use crate::kernel::{loader::Attachment, stream::Moved};
use dump::{self, Choice, DumpOptions};
use inspect::{clock::now_ns, memory::ScanLimits, privileges};
use nccl_library::symbols::DebugFiles;
use recording::sinks::{OutputDir, Share};

/// Most dumps of one recording: each has some kilobytes for each rank.
const MAX_DUMPS: u32 = 100;
/// Time that the end of the recording waits for a running dump. Memory that does not answer costs a dump
/// seconds for each process that has such.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct HangWatch {
    limit: Duration,
    debug_files: DebugFiles,
    hits: u64,
    /// Time of the last hit seen.
    since: Instant,
    dumped: bool,
    dumps: u32,
    running: Option<JoinHandle<()>>,
    stillness: Stillness,
}

/// Processes that are watched for a standstill.
pub(super) enum Watched<'a> {
    /// One job: any hit is a sign of life of all.
    Together(&'a dyn Fn() -> Vec<u32>),
    /// Processes of many tenants, and when each moved.
    Each(Vec<Member>, &'a Moved),
}

impl HangWatch {
    pub(super) fn new(limit: Duration, debug_files: DebugFiles) -> Self {
        let since = Instant::now();
        let stillness = Stillness::new(limit);
        Self { limit, debug_files, hits: 0, since, dumped: false, dumps: 0, running: None, stillness }
    }

    /// Returns the longest time until the next look.
    pub(super) fn timeout(&self) -> Duration {
        let left = self.limit.saturating_sub(self.since.elapsed());
        let pause = self.limit / 4;
        if self.dumped { pause } else { left.min(pause) }.max(Duration::from_millis(10))
    }

    /// Looks for hits. Dumps processes that had none for too long, once until there is a hit again.
    pub(super) fn look(
        &mut self,
        attachment: &Attachment,
        watched: Watched<'_>,
        dir: &OutputDir,
        events: &EventSender,
    ) -> Result<()> {
        let pids = match watched {
            Watched::Each(members, moved) => {
                // It is the time of whoever stands still that counts, and this is only when to look again.
                (self.since, self.dumped) = (Instant::now(), false);
                if self.is_running() || self.dumps >= MAX_DUMPS {
                    return Ok(());
                }
                self.stillness.look(&members, |pid| moved.last(pid), Instant::now())
            }
            Watched::Together(pids) => {
                self.stillness.begin();
                self.stand_together(attachment, pids)?
            }
        };
        if pids.is_empty() { Ok(()) } else { self.dump(pids, dir, events) }
    }

    fn is_running(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.is_finished())
    }

    /// Returns these processes if none had a hit for too long, also between windows.
    fn stand_together(&mut self, attachment: &Attachment, pids: &dyn Fn() -> Vec<u32>) -> Result<Vec<u32>> {
        let mut hits = 0;
        for probe in attachment.probes() {
            hits += attachment.counters(probe)?.iter().map(|cpu| cpu.hits + cpu.disarmed).sum::<u64>();
        }
        if hits != self.hits {
            (self.hits, self.since, self.dumped) = (hits, Instant::now(), false);
        }
        if self.dumped || self.since.elapsed() < self.limit || self.dumps >= MAX_DUMPS {
            return Ok(Vec::new());
        }
        // One at a time. This thread watches for the end of the recording, and waits for nobody.
        let pids = if self.is_running() { Vec::new() } else { pids() };
        if pids.is_empty() {
            self.since = Instant::now();
        }
        Ok(pids)
    }

    fn dump(&mut self, pids: Vec<u32>, dir: &OutputDir, events: &EventSender) -> Result<()> {
        let (dir, events) = (dir.try_clone().context("keeping the output folder open")?, events.clone());
        let options = DumpOptions {
            interval: Duration::from_millis(500),
            first_only: false,
            limits: ScanLimits { time: Duration::from_secs(10), ..ScanLimits::default() },
            debug_files: self.debug_files.clone(),
            stacks: true,
        };
        let limit = self.limit;
        let thread = thread::Builder::new().name("ncclflow-dump".to_owned());
        self.running = Some(thread.spawn(move || {
            privileges::keep_only(privileges::DUMPS.union(events.writes));
            // The dump reads other processes' memory; a failure there must not end the recording.
            let dumped = catch_unwind(AssertUnwindSafe(|| write_dump(pids, &options, &dir)))
                .unwrap_or_else(|_| Err(anyhow!("the thread `ncclflow-dump` panicked")));
            events.send(match dumped {
                Ok((name, state)) => SessionEvent::Dumped(format!(
                    "nothing moved for {} s: {state}; see {name}",
                    limit.as_secs_f64()
                )),
                Err(error) => {
                    SessionEvent::WriteFailed(format!("nothing moved, and there is no dump: {error:#}"))
                }
            });
        })?);
        (self.dumped, self.dumps) = (true, self.dumps + 1);
        Ok(())
    }

    /// Waits up to [`PATIENCE`] for a running dump at the recording's end. `false`: it is left to itself.
    pub(super) fn finish(&mut self) -> bool {
        let Some(running) = self.running.take() else { return true };
        let deadline = Instant::now() + PATIENCE;
        while !running.is_finished() {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
        // It has reported its result already.
        let _ = running.join();
        true
    }
}

/// Writes a dump. Returns its file's name and its verdict.
fn write_dump(pids: Vec<u32>, options: &DumpOptions, dir: &OutputDir) -> Result<(String, String)> {
    let report = dump::dump(&Choice::Pids(pids), options, &mut |_| {})?;
    let name = format!("dump_{}.json", now_ns(ClockId::Realtime) / 1_000_000);
    let text = serde_json::to_string_pretty(&report)? + "\n";
    dir.replace_file(Share::Free, &name, |file| file.write_all(text.as_bytes()))
        .with_context(|| format!("writing `{name}`"))?;
    let state = match report.state() {
        dump::State::Healthy => "healthy",
        dump::State::Stuck => "stuck",
        dump::State::Waiting => "ranks wait for one that makes progress elsewhere",
        dump::State::Unknown => "ncclflow cannot tell why",
    };
    Ok((name, state.to_owned()))
}
