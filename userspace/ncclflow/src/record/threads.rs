//! The threads of a recording: how they are started, told and ended.
//!
//! The drain moves records out of the kernel and waits for nobody. The writer and the capture's keeper
//! consume them. The recording's own thread sends them messages.

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use rustix::time::ClockId;

use super::{
    consumers::{Consumer, join, keep_capture, keep_recording, write_flows},
    mailbox::{EventSender, KeeperMessage, WriterMessage},
    pipeline::Pipeline,
    setup::Bindings,
};
use crate::{
    capture::CaptureWriter,
    clock::now_ns,
    kernel::{
        loader::Attachment,
        stream::{Drain, DrainMessage, MailSender, Mailbox, Outlet, ProbeCounts, Source},
    },
    recording::RecordingWriter,
};
use flow::schema::LossReport;

/// How long the end, of the recording or of a window, waits for records that a CPU is still putting together.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Threads {
    drain: JoinHandle<(Drain, io::Result<()>)>,
    to_drain: DrainSender,
    /// Records that the drain has passed on, or dropped.
    taken_total: Arc<AtomicU64>,
    /// Of these, those that the writer did not get.
    dropped: Arc<Mutex<ProbeCounts>>,
    writer: Consumer<WriterMessage, Pipeline>,
    keeper: Option<Consumer<KeeperMessage, Option<Box<RecordingWriter>>>>,
    /// Of these, those that the keeper did not get.
    not_kept: Arc<Mutex<ProbeCounts>>,
    capturer: Option<Consumer<Infallible, CaptureWriter>>,
}

/// What the keeper begins with.
#[derive(Debug)]
pub(super) struct Keeping {
    /// With windows there is none before the first.
    pub(super) recording: Option<Box<RecordingWriter>>,
    pub(super) bindings: Bindings,
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
    pub(super) pipeline: Pipeline,
    pub(super) recording: Option<Box<RecordingWriter>>,
    /// Records that the recording lacks.
    pub(super) not_recorded: u64,
    pub(super) capture: Option<CaptureWriter>,
    /// Records that the pipeline did not get, as it had not kept up.
    pub(super) dropped: ProbeCounts,
    /// What windows lack. Their files are no longer the pipeline's.
    pub(super) windows_lost: LossReport,
    /// Records that the capture lacks.
    pub(super) not_captured: u64,
    /// Most bytes that waited for the pipeline at a time.
    pub(super) queue_peak: usize,
}

impl Threads {
    /// Starts them. If one cannot be started, the others end. At most `queue_bytes` of records wait for each
    /// consumer.
    pub(super) fn start(
        source: Source,
        queue_bytes: usize,
        pipeline: Pipeline,
        keeping: Option<Keeping>,
        capture: Option<CaptureWriter>,
        events: &EventSender,
    ) -> Result<Self> {
        let context = "starting a thread";
        let (to_drain, told) = Mailbox::new().context("making an eventfd")?;
        let write = move |inbox: &_, events: &_| write_flows(inbox, pipeline, events);
        let (writer, outlet) =
            Consumer::start("ncclflow-write", queue_bytes, events, write).context(context)?;
        let (dropped, mut outlets) = (outlet.shared_dropped(), vec![outlet]);
        let (mut keeper, mut not_kept, mut capturer) = (None, Arc::default(), None);
        if let Some(Keeping { recording, bindings }) = keeping {
            let keep = move |inbox: &_, events: &_| keep_recording(inbox, recording, bindings, events);
            let (consumer, outlet) =
                Consumer::start("ncclflow-keep", queue_bytes, events, keep).context(context)?;
            (keeper, not_kept) = (Some(consumer), outlet.shared_dropped());
            outlets.push(outlet);
        }
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
        Ok(Self { drain, to_drain, taken_total, dropped, writer, keeper, not_kept, capturer })
    }

    /// Tells the writer that a process has ended, or is not there any more.
    pub(super) fn process_ended(&self, tgid: u32) {
        let at_ns = now_ns(ClockId::Monotonic);
        // A writer that has failed is an error at the end.
        let _ = self.writer.inbox.send(WriterMessage::ProcessEnded { tgid, at_ns });
        if let Some(keeper) = &self.keeper {
            let _ = keeper.inbox.send(KeeperMessage::ProcessEnded { tgid, at_ns });
        }
    }

    /// Gives the keeper another recording, or none, once it has taken all that has come. Gives back the one that it had.
    pub(super) fn swap_recording(
        &self,
        next: Option<Box<RecordingWriter>>,
    ) -> Result<Option<Box<RecordingWriter>>> {
        let Some(keeper) = &self.keeper else { return Ok(None) };
        let (reply, answer) = mpsc::channel();
        keeper.inbox.send(KeeperMessage::Swap { next, reply })?;
        answer.recv().map_err(|_| anyhow!("the thread that keeps the recording has failed"))
    }

    /// Gives the writer another pipeline, once it has taken all that has come. Gives back the one that it
    /// had, finished.
    pub(super) fn swap(&self, next: Pipeline) -> Result<Pipeline> {
        let (reply, answer) = mpsc::channel();
        self.writer.inbox.send(WriterMessage::Swap { next: Box::new(next), reply })?;
        answer.recv().map_err(|_| anyhow!("the thread that writes has failed"))
    }

    /// Records that the writer did not get until now.
    pub(super) fn dropped(&self) -> ProbeCounts {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that the keeper did not get until now.
    pub(super) fn not_kept(&self) -> u64 {
        self.not_kept.lock().unwrap_or_else(PoisonError::into_inner).total()
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
        let has_keeper = self.keeper.is_some();
        let (pipeline, recording) = (self.writer.end(), self.keeper.map(Consumer::end).transpose());
        let capture = self.capturer.map(Consumer::end).transpose();
        let (drain, drained) = drain?;
        let (pipeline, recording, capture) = (pipeline?, recording?.flatten(), capture?);
        let (writers, others) = drain.outlets().split_first().context("the drain has no writer")?;
        let not_taken =
            |outlets: &[Outlet]| outlets.iter().map(|outlet| outlet.dropped().total()).sum::<u64>();
        let (of_keeper, of_capture) = others.split_at(usize::from(has_keeper));
        let taken = Taken {
            pipeline,
            dropped: writers.dropped(),
            windows_lost: LossReport::default(),
            not_recorded: not_taken(of_keeper),
            recording,
            not_captured: not_taken(of_capture) + capture.as_ref().map_or(0, CaptureWriter::lost),
            queue_peak: writers.peak(),
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
