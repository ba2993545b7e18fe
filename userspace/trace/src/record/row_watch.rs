//! Reads a recording while it is written, for live statistics and the limits of a window.
//!
//! The reader may lag: it loses nothing, as the records are on the disk.

use inspect::{clock::now_ns, failpoint, privileges};
use recording::{
    format::{BLOCK_TIME, FOLDER, Item, Progress, RecordingReader, Selection},
    rows::{Pipeline, STRAGGLE_NS},
    sinks::{LiveStatistics, OutputDir, SessionFiles},
};
use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use rustix::time::ClockId;

use super::{
    iterations::{Decision, IterationLooker},
    mailbox::{EventSender, SessionEvent},
};
use flow::session::WindowIterations;

/// Interval at which ended processes are looked for.
const ENDED_INTERVAL: Duration = Duration::from_millis(500);

/// Request to read a recording while it is written.
#[derive(Debug)]
pub(super) struct WatchRequest {
    /// Folder of the session or the window that has the recording.
    pub(super) dir: OutputDir,
    pub(super) live: Option<LiveStatistics>,
    pub(super) limits: Option<WindowLimits>,
    /// The recording has calls, and no ops.
    pub(super) has_calls_only: bool,
    /// Set when nobody waits for the end any more.
    pub(super) stop: Arc<AtomicBool>,
}

/// Limits that end a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowLimits {
    pub(super) number: u32,
    /// Most ops or calls.
    pub(super) max_ops: Option<u64>,
    /// Training iterations.
    pub(super) iterations: Option<u64>,
}

/// Messages to the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchMessage {
    /// There is more in the recording.
    Written,
    /// The recording is complete.
    Finish,
}

/// Handle of the recording's writer, to tell the thread that there is more.
#[derive(Clone, Debug)]
pub(super) struct WatchFeed {
    messages: Sender<WatchMessage>,
    /// Records in the recording.
    written: Arc<AtomicU64>,
}

impl WatchFeed {
    pub(super) fn written(&self, records: u64) {
        self.written.store(records, Ordering::Relaxed);
        // A thread that has ended wants nothing more.
        let _ = self.messages.send(WatchMessage::Written);
    }
}

/// The thread that reads one recording.
#[derive(Debug)]
pub(super) struct RowWatch {
    feed: WatchFeed,
    thread: JoinHandle<Result<Watched>>,
}

/// Results of the thread, when it has read the whole recording.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) pipeline: Pipeline,
    /// The window's iterations, where they were looked for.
    pub(super) iterations: Option<WindowIterations>,
}

impl RowWatch {
    pub(super) fn start(request: WatchRequest, events: &EventSender) -> Result<Self> {
        let (messages, inbox) = mpsc::channel();
        let (written, events) = (Arc::<AtomicU64>::default(), events.clone());
        let feed = WatchFeed { messages, written: Arc::clone(&written) };
        let watch = move || {
            let guard = events.health.guard("ncclflow-rows");
            privileges::keep_only(events.writes);
            let watched = Watcher::open(request, written, &events).and_then(|watcher| watcher.run(&inbox));
            if let Err(error) = &watched {
                // The recording goes on.
                let error = format!("reading the recording while it is written stopped: {error:#}");
                events.send(SessionEvent::WriteFailed(error));
            }
            guard.done();
            watched
        };
        let thread = thread::Builder::new().name("ncclflow-rows".to_owned()).spawn(watch);
        Ok(Self { feed, thread: thread.context("starting a thread")? })
    }

    pub(super) fn feed(&self) -> WatchFeed {
        self.feed.clone()
    }

    /// Says that the recording is whole, and waits until it is read.
    pub(super) fn finish(self) -> Result<Watched> {
        // A failed thread returns its error below.
        let _ = self.feed.messages.send(WatchMessage::Finish);
        self.thread.join().map_err(|_| anyhow!("the thread that reads the recording failed"))?
    }
}

struct Watcher<'a> {
    reader: RecordingReader,
    pipeline: Pipeline,
    limits: Option<WindowLimits>,
    looker: Option<IterationLooker>,
    /// Iterations that the looker has found.
    iterations: Option<WindowIterations>,
    stop: Arc<AtomicBool>,
    events: &'a EventSender,
    /// Records that were read, and records in the recording.
    records: u64,
    written: Arc<AtomicU64>,
    is_full_sent: bool,
}

impl<'a> Watcher<'a> {
    fn open(request: WatchRequest, written: Arc<AtomicU64>, events: &'a EventSender) -> Result<Self> {
        let WatchRequest { dir, live, limits, has_calls_only, stop } = request;
        let reader = RecordingReader::open(dir.open_subfolder(FOLDER)?)?;
        let wanted = limits.and_then(|limits| limits.iterations);
        let looker = wanted.map(|wanted| IterationLooker::new(wanted, has_calls_only));
        let files = match &looker {
            Some(looker) => SessionFiles::of_sink(Box::new(looker.clone())),
            None => SessionFiles::nowhere(),
        };
        let mut pipeline = if live.is_some() {
            Pipeline::reading(reader.session(), files)
        } else {
            Pipeline::reading_ops(reader.session(), files)
        };
        pipeline.output.room = limits.and_then(|limits| limits.max_ops);
        pipeline.output.live = live;
        let (iterations, records, is_full_sent) = Default::default();
        Ok(Self {
            reader,
            pipeline,
            limits,
            looker,
            iterations,
            stop,
            events,
            records,
            written,
            is_full_sent,
        })
    }

    fn run(mut self, inbox: &Receiver<WatchMessage>) -> Result<Watched> {
        let mut is_over = false;
        while !is_over {
            is_over = self.wait(inbox);
            self.read()?;
            if is_over {
                self.pipeline.finish();
            }
            self.look_at_limits(is_over);
        }
        Ok(Watched { pipeline: self.pipeline, iterations: self.iterations })
    }

    /// Waits for more records, or until it is time to look for ended processes. `true`: nothing more comes.
    fn wait(&mut self, inbox: &Receiver<WatchMessage>) -> bool {
        loop {
            let message = if self.pipeline.ended_ns.is_empty() {
                inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                inbox.recv_timeout(ENDED_INTERVAL)
            };
            match message {
                // Many waiting messages count as one.
                Ok(WatchMessage::Written) => {
                    return inbox.try_iter().any(|message| message == WatchMessage::Finish);
                }
                Ok(WatchMessage::Finish) | Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => {
                    // All records of processes that ended so long ago are in the recording.
                    let in_block = u64::try_from(BLOCK_TIME.as_nanos()).unwrap_or(u64::MAX);
                    let now = now_ns(ClockId::Monotonic);
                    self.pipeline.close_ended_before(now.saturating_sub(STRAGGLE_NS + 2 * in_block));
                }
            }
        }
    }

    /// Reads what is there.
    fn read(&mut self) -> Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            failpoint::here("rows")?;
            let Self { reader, pipeline, records, .. } = self;
            let progress = reader.read_next(&Selection::ALL, &mut |item| {
                *records += u64::from(matches!(item, Item::Record(_)));
                pipeline.take(item);
            })?;
            self.pipeline.close_ended();
            if let Some(live) = &self.pipeline.output.live {
                live.lock().behind(self.lag());
            }
            if progress == Progress::AtEnd {
                break;
            }
        }
        Ok(())
    }

    /// Returns the number of records that have not been read yet.
    fn lag(&self) -> u64 {
        let passed = self.records + self.reader.damage().removed;
        self.written.load(Ordering::Relaxed).saturating_sub(passed)
    }

    /// Tells when the window is full. `is_over`: nothing more comes.
    fn look_at_limits(&mut self, is_over: bool) {
        let Some(WindowLimits { number, .. }) = self.limits else { return };
        let mut is_full = self.pipeline.output.is_out_of_room();
        if let Some(looker) = &self.looker
            && self.iterations.is_none()
        {
            let is_last = is_over || self.stop.load(Ordering::Relaxed);
            match looker.looking().decide(is_last) {
                None => {}
                Some(Decision::Complete(found)) => (self.iterations, is_full) = (Some(found), true),
                // What is found when its time is up ends the window, too.
                Some(Decision::Ended(found)) => {
                    is_full |= found.found;
                    self.iterations = Some(found);
                }
            }
        }
        if is_full && !is_over && !mem::replace(&mut self.is_full_sent, true) {
            self.events.send(SessionEvent::WindowFull(number));
        }
    }
}
