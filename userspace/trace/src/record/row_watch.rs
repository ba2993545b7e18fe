//! Reads a recording while it is written, for live statistics and the limits of a window.
//!
//! The reader may lag: it loses nothing, as the records are on the disk.

use inspect::{clock::now_ns, failpoint};
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
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Result, anyhow};
use rustix::time::ClockId;

use super::{
    iterations::IterationLooker,
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

/// The thread that reads one recording, as the recording's writer sees it.
#[derive(Debug)]
pub(super) struct RowWatch {
    /// A message for each time that there is more in the recording. Once this is closed, it is complete.
    news: Sender<()>,
    /// Records in the recording.
    written: Arc<AtomicU64>,
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
        let (news, inbox) = mpsc::channel();
        let (written, events) = (Arc::<AtomicU64>::default(), events.clone());
        let (health, writes, told) = (events.health.clone(), events.writes, Arc::clone(&written));
        let watch = move || {
            let watched = Watcher::open(request, told, &events).and_then(|watcher| watcher.run(&inbox));
            if let Err(error) = &watched {
                // The recording goes on.
                let error = format!("reading the recording while it is written stopped: {error:#}");
                events.send(SessionEvent::WriteFailed(error));
            }
            watched
        };
        Ok(Self { news, written, thread: health.spawn("ncclflow-rows", writes, watch)? })
    }

    /// Says that there is more to read.
    pub(super) fn written(&self, records: u64) {
        self.written.store(records, Ordering::Relaxed);
        // A thread that has ended wants nothing more.
        let _ = self.news.send(());
    }

    /// Says that the recording is whole, and waits until it is read.
    pub(super) fn finish(self) -> Result<Watched> {
        let Self { news, thread, .. } = self;
        drop(news);
        thread.join().map_err(|_| anyhow!("the thread that reads the recording failed"))?
    }
}

struct Watcher<'a> {
    request: WatchRequest,
    reader: RecordingReader,
    pipeline: Pipeline,
    looker: Option<IterationLooker>,
    /// Iterations that the looker has found.
    iterations: Option<WindowIterations>,
    events: &'a EventSender,
    /// Records that were read, and records in the recording.
    records: u64,
    written: Arc<AtomicU64>,
    is_full_sent: bool,
}

impl<'a> Watcher<'a> {
    fn open(request: WatchRequest, written: Arc<AtomicU64>, events: &'a EventSender) -> Result<Self> {
        let reader = RecordingReader::open(request.dir.open_subfolder(FOLDER)?)?;
        let wanted = request.limits.and_then(|limits| limits.iterations);
        let looker = wanted.map(|wanted| IterationLooker::new(wanted, request.has_calls_only));
        let files = match &looker {
            Some(looker) => SessionFiles::of_sink(Box::new(looker.clone())),
            None => SessionFiles::nowhere(),
        };
        let mut pipeline = if request.live.is_some() {
            Pipeline::reading(reader.session(), files)
        } else {
            Pipeline::reading_ops(reader.session(), files)
        };
        pipeline.output.room = request.limits.and_then(|limits| limits.max_ops);
        pipeline.output.live.clone_from(&request.live);
        let (iterations, records, is_full_sent) = Default::default();
        Ok(Self { request, reader, pipeline, looker, iterations, events, records, written, is_full_sent })
    }

    fn run(mut self, inbox: &Receiver<()>) -> Result<Watched> {
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
    fn wait(&mut self, inbox: &Receiver<()>) -> bool {
        loop {
            let message = if self.pipeline.ended_ns.is_empty() {
                inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                inbox.recv_timeout(ENDED_INTERVAL)
            };
            match message {
                Ok(()) => {
                    // Many waiting messages count as one.
                    inbox.try_iter().for_each(drop);
                    return false;
                }
                Err(RecvTimeoutError::Disconnected) => return true,
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
        while !self.request.stop.load(Ordering::Relaxed) {
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
        let Some(WindowLimits { number, .. }) = self.request.limits else { return };
        let mut is_full = self.pipeline.output.is_out_of_room();
        if let Some(looker) = &self.looker
            && self.iterations.is_none()
        {
            let is_last = is_over || self.request.stop.load(Ordering::Relaxed);
            self.iterations = looker.looking().decide(is_last);
            // What is found when its time is up ends the window, too.
            is_full |= self.iterations.as_ref().is_some_and(|iterations| iterations.found);
        }
        if is_full && !is_over && !mem::replace(&mut self.is_full_sent, true) {
            self.events.send(SessionEvent::WindowFull(number));
        }
    }
}
