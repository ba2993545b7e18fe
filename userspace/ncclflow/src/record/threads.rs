//! The threads of a recording: how they are started, told and ended.
//!
//! The drain moves records out of the kernel and waits for nobody. The keeper of the recording and that of
//! the capture consume them. The recording's own thread sends them messages. Files are made by others, which
//! read the recording ([`super::files`]).

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use rustix::time::ClockId;

use super::{
    accounts::Accounts,
    consumers::{Consumer, join, keep_capture},
    direct::decode_directly,
    keeper::{Keeping, OpenRecording, keep_recording},
    mailbox::{EventSender, KeeperMessage, WatcherMessage},
    pipeline::Pipeline,
};
use crate::{
    capture::CaptureWriter,
    clock::now_ns,
    kernel::{
        loader::Attachment,
        stream::{Drain, DrainMessage, MailSender, Mailbox, ProbeCounts, Source},
    },
    recording::FirstHit,
};

/// How long the end, of the recording or of a window, waits for records that a CPU is still putting together.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Threads {
    drain: JoinHandle<(Drain, io::Result<()>)>,
    to_drain: DrainSender,
    /// Records that the drain has passed on, or dropped.
    taken_total: Arc<AtomicU64>,
    /// Of these, those that the first taker did not get.
    dropped: Arc<Mutex<ProbeCounts>>,
    taker: Taker,
    capturer: Option<Consumer<Infallible, CaptureWriter>>,
}

/// Who takes the records first.
#[derive(Debug)]
pub(super) enum FirstTaker {
    /// Into a recording.
    Keeper(Keeping),
    /// For statistics alone. Boxed, as it is much larger.
    Watcher(Box<Pipeline>),
}

#[derive(Debug)]
enum Taker {
    Keeper(Consumer<KeeperMessage, (Option<OpenRecording>, Accounts)>),
    Watcher(Consumer<WatcherMessage, (Pipeline, Accounts)>),
}

/// Whatever happens to who holds it, the drain does not go on.
#[derive(Debug)]
struct DrainSender(MailSender<DrainMessage>);

impl Drop for DrainSender {
    fn drop(&mut self) {
        self.0.send(DrainMessage::Stop);
    }
}

/// What was taken in.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) accounts: Accounts,
    pub(super) kept: Option<OpenRecording>,
    /// What decoded the records, if nobody kept them.
    pub(super) watched: Option<Pipeline>,
    pub(super) capture: Option<CaptureWriter>,
    /// Records that the first taker did not get, as it had not kept up.
    pub(super) dropped: ProbeCounts,
    /// Records that the capture lacks.
    pub(super) not_captured: u64,
    /// Most bytes that waited for the first taker at a time.
    pub(super) queue_peak: usize,
}

impl Threads {
    /// Starts them. If one cannot be started, the others end. At most `queue_bytes` of records wait for each
    /// consumer.
    pub(super) fn start(
        source: Source,
        queue_bytes: usize,
        first: FirstTaker,
        capture: Option<CaptureWriter>,
        events: &EventSender,
    ) -> Result<Self> {
        let context = "starting a thread";
        let (to_drain, told) = Mailbox::new().context("making an eventfd")?;
        let (taker, outlet) = match first {
            FirstTaker::Keeper(keeping) => {
                let keep = move |inbox: &_, events: &_| keep_recording(inbox, keeping, events);
                let started = Consumer::start("ncclflow-keep", queue_bytes, events, keep);
                let (consumer, outlet) = started.context(context)?;
                (Taker::Keeper(consumer), outlet)
            }
            FirstTaker::Watcher(pipeline) => {
                let decode = move |inbox: &_, events: &_| decode_directly(inbox, *pipeline, events);
                let started = Consumer::start("ncclflow-watch", queue_bytes, events, decode);
                let (consumer, outlet) = started.context(context)?;
                (Taker::Watcher(consumer), outlet)
            }
        };
        let (dropped, mut outlets, mut capturer) = (outlet.shared_dropped(), vec![outlet], None);
        if let Some(capture) = capture {
            let keep = move |inbox: &_, events: &_| keep_capture(inbox, capture, events);
            let (consumer, outlet) =
                Consumer::start("ncclflow-capt", queue_bytes, events, keep).context(context)?;
            capturer = Some(consumer);
            outlets.push(outlet);
        }
        let mut drain = Drain::new(source, outlets);
        let taken_total = drain.taken_total();
        // Last: it ends only when it is told to.
        let drain = thread::Builder::new().name("ncclflow-drain".to_owned()).spawn(move || {
            let drained = drain.run(&told);
            (drain, drained)
        });
        let drain = drain.context(context)?;
        let to_drain = DrainSender(to_drain);
        Ok(Self { drain, to_drain, taken_total, dropped, taker, capturer })
    }

    /// Tells the first taker that a process has ended, or is not there any more.
    pub(super) fn process_ended(&self, tgid: u32) {
        let at_ns = now_ns(ClockId::Monotonic);
        // A thread that has failed is an error at the end.
        let _ = match &self.taker {
            Taker::Keeper(keeper) => keeper.inbox.send(KeeperMessage::ProcessEnded { tgid, at_ns }),
            Taker::Watcher(watcher) => watcher.inbox.send(WatcherMessage::ProcessEnded { tgid, at_ns }),
        };
    }

    /// Gives the keeper another recording, or none, once it has taken all that has come. Gives back the one
    /// that it had, and the accounts of what came for it. The accounts of the next begin at `hits`.
    pub(super) fn swap_recording(
        &self,
        next: Option<OpenRecording>,
        hits: Vec<FirstHit>,
    ) -> Result<(Option<OpenRecording>, Accounts)> {
        let Taker::Keeper(keeper) = &self.taker else { return Ok(Default::default()) };
        keeper.inbox.ask(|reply| KeeperMessage::Swap { next: next.map(Box::new), hits, reply })
    }

    /// Records that the first taker did not get until now.
    pub(super) fn dropped(&self) -> ProbeCounts {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the drain has passed on or dropped all records of a session that is closed.
    pub(super) fn settle(&self, attachment: &Attachment) -> Result<()> {
        settle(attachment, || {
            self.to_drain.0.send(DrainMessage::LookNow);
            self.taken_total.load(Ordering::Acquire)
        })
    }

    /// Takes what is left, and ends them all. The session is closed. Says, too, whether the drain has worked
    /// until now.
    pub(super) fn end(self, attachment: &Attachment) -> Result<(Taken, Result<()>)> {
        drop(self.to_drain);
        let drain = join(self.drain).map(|(mut drain, drained)| {
            let settled = settle(attachment, || {
                while drain.take_all() > 0 {}
                drain.taken().total()
            });
            drain.close(|tgid| attachment.lost_by_process(tgid).unwrap_or(0));
            (drain, settled.and(drained.context("waiting for records")))
        });
        // Whatever fails, all have ended first.
        let taken = match self.taker {
            Taker::Keeper(keeper) => keeper.end().map(|(kept, accounts)| (kept, None, accounts)),
            Taker::Watcher(watcher) => {
                watcher.end().map(|(watched, accounts)| (None, Some(watched), accounts))
            }
        };
        let capture = self.capturer.map(Consumer::end).transpose();
        let ((drain, drained), (kept, watched, accounts), capture) = (drain?, taken?, capture?);
        let (first, others) = drain.outlets().split_first().context("the drain gives to nobody")?;
        let of_capture: u64 = others.iter().map(|outlet| outlet.dropped().total()).sum();
        let taken = Taken {
            accounts,
            kept,
            watched,
            dropped: first.dropped(),
            not_captured: of_capture + capture.as_ref().map_or(0, CaptureWriter::lost),
            queue_peak: first.peak(),
            capture,
        };
        Ok((taken, drained))
    }
}

/// Waits until every hit that was counted has been taken or was lost in the kernel, or it is clear that this
/// will not come true. The session is closed: no more hits are made. `taken` looks for records, and says how
/// many were taken in all.
fn settle(attachment: &Attachment, mut taken: impl FnMut() -> u64) -> Result<()> {
    let deadline = Instant::now() + SETTLE_LIMIT;
    loop {
        let (taken, mut sent) = (taken(), 0);
        for probe in attachment.probes() {
            for cpu in attachment.counters(probe)? {
                sent += cpu.hits.saturating_sub(cpu.lost_full);
            }
        }
        if taken >= sent || Instant::now() >= deadline {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
}
