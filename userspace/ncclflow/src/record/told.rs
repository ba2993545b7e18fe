//! How the threads of a recording are heard, and told.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use rustix::time::ClockId;

use super::{
    limit,
    pipeline::Pipeline,
    recorder::Notice,
    takers::{Command, Complaints, News, Next, Swap},
};
use crate::{
    clock::now_ns,
    kernel::{
        loader::Attachment,
        stream::{ProbeCounts, Queue, Waker},
    },
    sinks::SessionReport,
};

/// How long a window's end waits for records that a CPU is still putting together.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

/// The ends of all channels that the recording's own thread has.
#[derive(Debug)]
pub(super) struct Told<'a> {
    pub(super) bell: &'a Waker,
    /// For others to be heard by.
    pub(super) complaints: &'a Complaints,
    pub(super) news: &'a Receiver<News>,
    /// Records go on after some were dropped.
    pub(super) resumed: &'a AtomicBool,
    pub(super) commands: &'a Sender<Command>,
    pub(super) swaps: &'a Sender<Swap>,
    /// To be called when there is a command, or a swap.
    pub(super) flows: &'a Queue,
    /// Has the drain look at once.
    pub(super) nudge: &'a Waker,
    /// Records that the drain has passed on, or dropped.
    pub(super) taken_total: Arc<AtomicU64>,
    /// Of these, those that the writer did not get.
    pub(super) dropped: Arc<Mutex<ProbeCounts>>,
}

/// What the takers had to say.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Processes of which a first record came.
    pub(super) processes: Vec<u32>,
    /// The window has as many ops as it may have.
    pub(super) is_full: bool,
    /// Windows were removed.
    pub(super) has_removed: bool,
}

impl Told<'_> {
    /// Tells the writer that a process has ended, or is not there any more.
    pub(super) fn ended(&self, tgid: u32) {
        let at_ns = now_ns(ClockId::Monotonic);
        // Nobody listens any more only when the recording is over.
        let _ = self.commands.send(Command::Ended { tgid, at_ns });
        self.flows.call();
    }

    /// Gives the writer another pipeline; `reply` gets the one that it had.
    pub(super) fn swap(&self, next: Next, reply: Sender<Pipeline>) -> Result<()> {
        let sent = self.swaps.send(Swap { next, reply });
        self.flows.call();
        sent.map_err(|_| anyhow!("the thread that writes has failed"))
    }

    pub(super) fn dropped(&self) -> ProbeCounts {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until every hit that was counted has been passed on or dropped, or it is clear that this will not come true. The session
    /// is closed: no more are made.
    pub(super) fn settle(&self, attachment: &Attachment) -> Result<()> {
        let deadline = Instant::now() + SETTLE_LIMIT;
        loop {
            let mut sent = 0;
            for probe in attachment.probes() {
                for cpu in attachment.counters(probe)? {
                    sent += cpu.hits.saturating_sub(cpu.lost_full);
                }
            }
            if self.taken_total.load(Ordering::Acquire) >= sent || Instant::now() >= deadline {
                return Ok(());
            }
            self.nudge.wake();
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Passes on what went wrong, and gives back the rest.
    pub(super) fn hear(&self, report: &mut SessionReport, notice: &mut dyn FnMut(Notice<'_>)) -> Heard {
        let mut heard = Heard::default();
        for news in self.news.try_iter() {
            match news {
                News::Failed(error) => {
                    notice(Notice::WriteFailed(&error));
                    report.errors.push(error);
                }
                News::Process(tgid) => heard.processes.push(tgid),
                News::Full => heard.is_full = true,
                News::Dumped(what) => notice(Notice::Hang(&what)),
                News::Disk => {}
            }
        }
        if let Some(budget) = &self.complaints.budget {
            heard.has_removed = limit::tell(budget, report, notice);
        }
        heard
    }
}
