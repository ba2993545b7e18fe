//! The threads of a recording: how they are started, told, heard and ended.
//!
//! The drain moves records out of the kernel and waits for nobody. The writer and the capture's keeper
//! consume them. The exporter completes the folders of windows. The recording's own thread sends them
//! messages, and receives their events.

use std::{
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
    consumers::{keep_capture, write_flows},
    limit,
    mailbox::{EventSender, Inbox, InboxSender, KeeperMessage, NextPipeline, SessionEvent, WriterMessage},
    options::Notice,
    pipeline::Pipeline,
    results::{ClosedWindow, Exported, export},
};
use crate::{
    capture::CaptureWriter,
    clock::now_ns,
    kernel::{
        loader::Attachment,
        stream::{Drain, DrainMessage, MailSender, Mailbox, Outlet, ProbeCounts, Queue, Source},
    },
    sinks::{DiskBudget, SessionReport},
};

/// How long the end, of the recording or of a window, waits for records that a CPU is still putting together.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

/// The ends of all mailboxes that the recording's own thread has.
#[derive(Debug)]
pub(super) struct ThreadChannels {
    events: Mailbox<SessionEvent>,
    event_sender: EventSender,
    writer: InboxSender<WriterMessage>,
    keeper: Option<InboxSender<KeeperMessage>>,
    drain: MailSender<DrainMessage>,
    /// Records that the drain has passed on, or dropped.
    taken_total: Arc<AtomicU64>,
    /// Of these, those that the writer did not get.
    dropped: Arc<Mutex<ProbeCounts>>,
}

/// What the other threads have said.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Processes of which a first record came.
    pub(super) new_processes: Vec<u32>,
    /// The window has as many ops as it may have.
    pub(super) is_window_full: bool,
    /// Windows were removed.
    pub(super) has_removed_windows: bool,
    /// Records go on after some were dropped.
    pub(super) has_resumed: bool,
}

impl ThreadChannels {
    /// Readable when there is something to receive.
    pub(super) fn events(&self) -> &Mailbox<SessionEvent> {
        &self.events
    }

    /// For others to send events to this thread.
    pub(super) fn event_sender(&self) -> &EventSender {
        &self.event_sender
    }

    /// Passes on what went wrong, and gives back the rest.
    pub(super) fn receive(&self, report: &mut SessionReport, notice: &mut dyn FnMut(Notice<'_>)) -> Received {
        let mut received = Received::default();
        for event in self.events.take() {
            match event {
                SessionEvent::WriteFailed(error) => {
                    notice(Notice::WriteFailed(&error));
                    report.errors.push(error);
                }
                SessionEvent::NewProcess(tgid) => received.new_processes.push(tgid),
                SessionEvent::WindowFull => received.is_window_full = true,
                SessionEvent::Dumped(what) => notice(Notice::Hang(&what)),
                SessionEvent::RecordsResumed => received.has_resumed = true,
                SessionEvent::DiskBudget => {}
            }
        }
        if let Some(budget) = &self.event_sender.budget {
            received.has_removed_windows = limit::tell(budget, report, notice);
        }
        received
    }

    /// Tells the writer that a process has ended, or is not there any more.
    pub(super) fn process_ended(&self, tgid: u32) {
        let at_ns = now_ns(ClockId::Monotonic);
        // A writer that has failed is an error at the end.
        let _ = self.writer.send(WriterMessage::ProcessEnded { tgid, at_ns });
    }

    /// Gives the writer another pipeline, once it has taken all that has come. Gives back the one that it
    /// had, finished.
    pub(super) fn swap(&self, next: NextPipeline) -> Result<Pipeline> {
        let (reply, answer) = mpsc::channel();
        self.writer.send(WriterMessage::Swap { next, reply })?;
        answer.recv().map_err(|_| anyhow!("the thread that writes has failed"))
    }

    /// Records that the writer did not get until now.
    pub(super) fn dropped(&self) -> ProbeCounts {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the drain has passed on or dropped all records of a session that is closed.
    pub(super) fn settle(&self, attachment: &Attachment) -> Result<()> {
        settle(attachment, || {
            self.drain.send(DrainMessage::LookNow);
            self.taken_total.load(Ordering::Acquire)
        })
    }
}

impl Drop for ThreadChannels {
    /// Whatever has happened, the drain must not go on.
    fn drop(&mut self) {
        self.drain.send(DrainMessage::Stop);
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

/// What the threads work with.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) source: Source,
    /// Most bytes of records that wait for each consumer.
    pub(super) queue_bytes: usize,
    pub(super) pipeline: Pipeline,
    pub(super) capture: Option<CaptureWriter>,
    /// With windows, those to complete.
    pub(super) windows: Option<mpsc::Receiver<ClosedWindow>>,
    /// Compress the files of windows.
    pub(super) compress: bool,
    pub(super) budget: Option<DiskBudget>,
}

/// The threads, which run.
#[derive(Debug)]
pub(super) struct Threads {
    drain: JoinHandle<(Drain, io::Result<()>)>,
    writer: JoinHandle<Pipeline>,
    keeper: Option<JoinHandle<CaptureWriter>>,
    exporter: Option<JoinHandle<Exported>>,
}

/// What the threads give back.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) drain: Drain,
    /// Whether the drain's thread ended because it was told to.
    pub(super) drained: io::Result<()>,
    /// Whether the kernel's counters could be read.
    pub(super) settled: Result<()>,
    pub(super) pipeline: Pipeline,
    pub(super) capture: Option<CaptureWriter>,
    pub(super) exported: Exported,
}

impl Threads {
    /// Starts them. If one cannot be started, the others end: they lose the senders of their mailboxes.
    pub(super) fn start(work: Work) -> Result<(Self, ThreadChannels)> {
        let Work { source, queue_bytes, pipeline, capture, windows, compress, budget } = work;
        let (events, mailbox) = Mailbox::new().context("making an eventfd")?;
        let (to_drain, drain_mailbox) = Mailbox::new().context("making an eventfd")?;
        let event_sender = EventSender { events, budget };
        let (to_writer, writer_inbox) = Inbox::new(queue_bytes);
        let (to_keeper, keeper) = match capture {
            Some(capture) => {
                let (to_keeper, inbox) = Inbox::new(queue_bytes);
                (Some(to_keeper), Some((capture, inbox)))
            }
            None => (None, None),
        };
        let outlet = |queue: &Arc<Queue>| {
            let events = event_sender.clone();
            Outlet::new(Arc::clone(queue)).on_resumption(move || events.send(SessionEvent::RecordsResumed))
        };
        let mut outlets = vec![outlet(&to_writer.records)];
        outlets.extend(
            to_keeper.iter().map(|to_keeper: &InboxSender<KeeperMessage>| outlet(&to_keeper.records)),
        );
        let dropped = outlets.first().map(Outlet::shared_dropped).unwrap_or_default();
        let mut drain = Drain::new(source, outlets);
        let channels = ThreadChannels {
            events: mailbox,
            event_sender,
            writer: to_writer,
            keeper: to_keeper,
            drain: to_drain,
            taken_total: drain.taken_total(),
            dropped,
        };
        let events = || channels.event_sender.clone();
        let threads = (|| {
            Ok::<_, io::Error>(Self {
                writer: spawn("ncclflow-write", {
                    let events = events();
                    move || write_flows(&writer_inbox, pipeline, &events)
                })?,
                keeper: keeper
                    .map(|(capture, inbox)| {
                        let events = events();
                        spawn("ncclflow-keep", move || keep_capture(&inbox, capture, &events))
                    })
                    .transpose()?,
                exporter: windows
                    .map(|windows| {
                        let events = events();
                        spawn("ncclflow-export", move || export(&windows, compress, &events))
                    })
                    .transpose()?,
                // Last: it ends only when it is told to.
                drain: spawn("ncclflow-drain", move || {
                    let drained = drain.run(&drain_mailbox);
                    (drain, drained)
                })?,
            })
        })();
        Ok((threads.context("starting a thread")?, channels))
    }

    /// Takes what is left, and ends them all. The session is closed. Windows are over, or the exporter does
    /// not end.
    pub(super) fn end(self, attachment: &Attachment, channels: &ThreadChannels) -> Result<Ended> {
        channels.drain.send(DrainMessage::Stop);
        let drain = join(self.drain).map(|(mut drain, drained)| {
            let settled = settle(attachment, || {
                while drain.take_all() > 0 {}
                drain.taken().total()
            });
            drain.close(|tgid| attachment.lost_by_process(tgid).unwrap_or(0));
            (drain, drained, settled)
        });
        // They are closed already, unless the drain has failed.
        channels.writer.records.close();
        if let Some(keeper) = &channels.keeper {
            keeper.records.close();
        }
        // Whatever fails, all have ended first.
        let (writer, keeper) = (join(self.writer), self.keeper.map(join).transpose());
        let exporter = self.exporter.map(join).transpose();
        let (drain, drained, settled) = drain?;
        Ok(Ended {
            drain,
            drained,
            settled,
            pipeline: writer?,
            capture: keeper?,
            exported: exporter?.unwrap_or_default(),
        })
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name.to_owned()).spawn(work)
}

fn join<T>(thread: JoinHandle<T>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread of the recording failed"))
}
