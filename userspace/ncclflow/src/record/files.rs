//! The files of lines, made from the recording by a thread that reads it while it is written, or when it is
//! over.
//!
//! It may lag: nothing is lost for it, as the records are on the disk. At `--files-limit` the files end, and
//! the recording goes on.

use std::{
    mem,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use rustix::time::ClockId;
use serde::Deserialize;

use super::{
    consumers::STRAGGLE_NS,
    iterations::{Decision, IterationLooker},
    mailbox::{EventSender, SessionEvent},
    options::FilesOptions,
    pipeline::Pipeline,
};
use crate::{
    clock::now_ns,
    fault, privileges,
    recording::{BLOCK_TIME, FOLDER, Item, Progress, RecordingReader, Selection},
    sinks::{
        ApiOutputOptions, FilesReport, FilesState, FilesWhen, Layout, LiveStatistics, OutputDir,
        SessionFiles, Sink as _,
    },
};

/// How often files are brought up to date for whoever reads along, and how often it is seen which processes
/// have ended.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

/// How often it is seen whether files have reached their age.
const AGE_INTERVAL: Duration = Duration::from_secs(1);

/// How often it is told how far files are behind.
const LAG_INTERVAL: Duration = Duration::from_secs(2);

/// What is made of a recording.
#[derive(Debug)]
pub(super) struct FilesRequest {
    /// The folder of the session or the window, in which the recording is.
    pub(super) dir: OutputDir,
    pub(super) options: FilesOptions,
    pub(super) api: ApiOutputOptions,
    /// Statistics of all rows, whether they are written or not.
    pub(super) live: Option<LiveStatistics>,
    pub(super) window: Option<WindowFiles>,
    /// Files without a window are removed when their first record is so old.
    pub(super) max_age: Option<Duration>,
    /// The files are compressed in the end.
    pub(super) compress: bool,
    /// The files end where they are.
    pub(super) stop: Arc<AtomicBool>,
}

/// What the files of a window may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowFiles {
    pub(super) number: u32,
    /// Most ops or calls.
    pub(super) max_ops: Option<u64>,
    /// Training iterations.
    pub(super) iterations: Option<u64>,
}

impl WindowFiles {
    /// Who makes them closes the window.
    pub(super) fn has_limit(self) -> bool {
        self.max_ops.is_some() || self.iterations.is_some()
    }
}

/// What the thread is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FilesMessage {
    /// There is more in the recording.
    Written,
    /// Nothing more comes into it.
    Finish,
}

/// For who writes the recording: tells the thread that there is more.
#[derive(Clone, Debug)]
pub(super) struct FilesFeed {
    messages: Sender<FilesMessage>,
    /// Records in the recording.
    written: Arc<AtomicU64>,
}

impl FilesFeed {
    pub(super) fn written(&self, records: u64) {
        self.written.store(records, Ordering::Relaxed);
        // One that has ended wants nothing more.
        let _ = self.messages.send(FilesMessage::Written);
    }
}

/// The thread that makes the files of one recording.
#[derive(Debug)]
pub(super) struct FilesThread {
    feed: FilesFeed,
    /// Records that were read.
    records: Arc<AtomicU64>,
    thread: JoinHandle<Result<Made>>,
}

/// Files that are as complete as they become.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) pipeline: Pipeline,
    pub(super) report: FilesReport,
}

impl FilesThread {
    pub(super) fn start(request: FilesRequest, events: &EventSender) -> Result<Self> {
        let (messages, inbox) = mpsc::channel();
        let (records, events) = (Arc::<AtomicU64>::default(), events.clone());
        let feed = FilesFeed { messages, written: Arc::default() };
        let [read, written] = [&records, &feed.written].map(Arc::clone);
        let is_window = request.window.is_some();
        let make = move || {
            let guard = events.health.guard("ncclflow-files");
            privileges::keep_only(events.writes);
            let follower = Follower::open(request, read, written, &events);
            let made = follower.and_then(|follower| follower.run(&inbox));
            if let Err(error) = &made
                && !is_window
            {
                // The recording goes on, and files can be made of it later.
                events.send(SessionEvent::WriteFailed(format!("making the files stopped: {error:#}")));
            }
            events.send(SessionEvent::FilesEnded);
            guard.done();
            made
        };
        let thread = thread::Builder::new().name("ncclflow-files".to_owned()).spawn(make);
        Ok(Self { feed, records, thread: thread.context("starting a thread")? })
    }

    pub(super) fn feed(&self) -> FilesFeed {
        self.feed.clone()
    }

    /// Says that the recording is whole: the thread reads what is left, and ends.
    pub(super) fn begin_to_finish(&self) {
        // One that has failed says so in the end.
        let _ = self.feed.messages.send(FilesMessage::Finish);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Records that were read until now.
    pub(super) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Waits for the end. [`Self::begin_to_finish`] comes before.
    pub(super) fn join(self) -> Result<Made> {
        self.thread.join().map_err(|_| anyhow!("the thread that makes the files failed"))?
    }
}

struct Follower<'a> {
    dir: OutputDir,
    reader: RecordingReader,
    pipeline: Pipeline,
    stop: Arc<AtomicBool>,
    events: &'a EventSender,
    /// Folder, for messages.
    folder: PathBuf,
    when: FilesWhen,
    window: Option<WindowFiles>,
    max_age: Option<Duration>,
    /// Why nothing more is written to the files.
    ended: Option<FilesState>,
    /// Others than files want all rows.
    is_watched: bool,
    /// Records that were read. Others look at it.
    records: Arc<AtomicU64>,
    /// Records in the recording.
    written: Arc<AtomicU64>,
    told_lag: Instant,
    flushed: Instant,
    errors_sent: usize,
    is_full_sent: bool,
}

impl<'a> Follower<'a> {
    fn open(
        request: FilesRequest,
        records: Arc<AtomicU64>,
        written: Arc<AtomicU64>,
        events: &'a EventSender,
    ) -> Result<Self> {
        let FilesRequest { dir, options, api, live, window, max_age, compress, stop } = request;
        let folder = dir.path().to_owned();
        let own_dir = dir.try_clone()?;
        let reader = RecordingReader::open(dir.open_subfolder(FOLDER)?)?;
        let has_files = options.when != FilesWhen::None;
        let layout = if window.is_some() { Layout::ByProcess } else { Layout::ByCommunicator };
        let files = if has_files {
            if reader.session().host.is_some() {
                SessionFiles::of_node(dir.for_lines()?, api, layout, compress)
            } else {
                SessionFiles::new(dir.for_lines()?, api, layout)
            }
        } else {
            SessionFiles::nowhere()
        };
        let mut pipeline = Pipeline::reading(reader.session(), files);
        let max_age = max_age.filter(|_| window.is_none() && has_files);
        pipeline.output.room = window.and_then(|window| window.max_ops);
        pipeline.output.limit_bytes = options.limit_bytes;
        pipeline.output.live = live;
        let is_watched = pipeline.output.live.is_some() || pipeline.output.room.is_some();
        Ok(Self {
            dir: own_dir,
            reader,
            pipeline,
            stop,
            events,
            folder,
            // Statistics, and the number of ops in a window, are wanted at once.
            when: if is_watched && options.when == FilesWhen::End { FilesWhen::Live } else { options.when },
            window,
            max_age,
            ended: None,
            is_watched,
            records,
            written,
            told_lag: Instant::now(),
            flushed: Instant::now(),
            errors_sent: 0,
            is_full_sent: false,
        })
    }

    fn run(mut self, inbox: &Receiver<FilesMessage>) -> Result<Made> {
        let follows = self.is_watched || self.when == FilesWhen::Live;
        let mut is_over = false;
        let mut has_more = false;
        if let Some(WindowFiles { number, iterations: Some(wanted), .. }) = self.window {
            is_over = self.look_for_iterations(number, wanted, inbox)?;
            has_more = true;
        }
        while has_more || !is_over {
            if !mem::take(&mut has_more) {
                is_over = self.wait(inbox);
            }
            if follows || is_over {
                self.read()?;
                self.flush();
                self.end_files();
            }
        }
        self.pipeline.finish();
        self.tell();
        Ok(Made { report: self.report(FilesState::Complete), pipeline: self.pipeline })
    }

    /// Reads what is recorded until it is known where iterations begin and end, or that they cannot be found.
    /// The files are made after that, from the beginning. `true`: nothing more comes.
    fn look_for_iterations(
        &mut self,
        number: u32,
        wanted: u64,
        inbox: &Receiver<FilesMessage>,
    ) -> Result<bool> {
        let mut reader = RecordingReader::open(self.dir.open_subfolder(FOLDER)?)?;
        let looker = IterationLooker::new(wanted, self.has_calls_only());
        let files = SessionFiles::of_sink(Box::new(looker.clone()));
        let mut pipeline = Pipeline::reading_ops(reader.session(), files);
        loop {
            let is_over = self.wait(inbox);
            while reader.read_next(&Selection::ALL, &mut |item| pipeline.take(item))? == Progress::Read {
                pipeline.close_ended();
            }
            let is_last = is_over || self.stop.load(Ordering::Relaxed);
            if is_last {
                pipeline.finish();
            }
            let (found, is_complete) = match looker.looking().decide(is_last) {
                None => continue,
                Some(Decision::Complete(found)) => (found, true),
                Some(Decision::Ended(found)) => (found, false),
            };
            // What is found when its time is up ends the window, too.
            if (is_complete || found.found) && !is_over {
                self.events.send(SessionEvent::WindowFull(number));
            }
            self.pipeline.output.iterations = Some(found);
            return Ok(is_over);
        }
    }

    fn has_calls_only(&self) -> bool {
        #[derive(Deserialize)]
        struct Report {
            level: String,
        }
        let report = serde_json::from_str::<Report>(&self.reader.session().report);
        report.is_ok_and(|report| report.level == "api")
    }

    /// Waits until there is more, or it is time to look at what is there. `true`: nothing comes after that.
    fn wait(&mut self, inbox: &Receiver<FilesMessage>) -> bool {
        loop {
            let patience = if self.pipeline.ended_ns.is_empty() {
                self.max_age.filter(|_| self.ended.is_none()).map(|_| AGE_INTERVAL)
            } else {
                Some(FLUSH_INTERVAL)
            };
            let message = match patience {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(patience) => inbox.recv_timeout(patience),
            };
            match message {
                // Of many that waited one is enough.
                Ok(FilesMessage::Written) => {
                    return inbox.try_iter().any(|message| message == FilesMessage::Finish);
                }
                Ok(FilesMessage::Finish) | Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => {
                    self.end_files();
                    // All records of processes that ended so long ago are in the recording.
                    let in_block = u64::try_from(BLOCK_TIME.as_nanos()).unwrap_or(u64::MAX);
                    let now = now_ns(ClockId::Monotonic);
                    self.pipeline.close_ended_before(now.saturating_sub(STRAGGLE_NS + 2 * in_block));
                }
            }
        }
    }

    /// Reads what is there, until the files end.
    fn read(&mut self) -> Result<()> {
        while self.is_watched || self.ended.is_none() {
            if self.stop.load(Ordering::Relaxed) {
                self.ended.get_or_insert(FilesState::Stopped);
                break;
            }
            fault::here("files")?;
            let Self { reader, pipeline, .. } = self;
            let mut records = 0;
            let progress = reader.read_next(&Selection::ALL, &mut |item| {
                records += u64::from(matches!(item, Item::Record(_)));
                pipeline.take(item);
            })?;
            self.records.fetch_add(records, Ordering::Relaxed);
            self.pipeline.close_ended();
            if let Some(live) = &self.pipeline.output.live {
                live.lock().behind(self.lag());
            }
            self.tell();
            self.tell_lag();
            self.end_files();
            if self.flushed.elapsed() >= FLUSH_INTERVAL {
                self.flush();
            }
            if progress == Progress::AtEnd {
                break;
            }
        }
        Ok(())
    }

    /// Ends the files where they have reached their limit, or their first record its age.
    fn end_files(&mut self) {
        if self.ended.is_some() {
            return;
        }
        if self.pipeline.output.is_over_limit() {
            self.ended = Some(FilesState::Limit);
            self.flush();
            // A window's are complete soon, and can be removed with the others then.
            if self.window.is_none() {
                self.pipeline.files().dir().into_iter().for_each(OutputDir::lines_may_be_removed);
            }
            self.events.send(SessionEvent::FilesLimit(self.folder.clone()));
        } else if self.is_too_old() {
            self.ended = Some(FilesState::Removed);
            self.flush();
            self.pipeline.output.leave_files();
            self.pipeline.files().dir().into_iter().for_each(OutputDir::remove_lines);
            self.events.look_at_budget();
        }
    }

    fn is_too_old(&self) -> bool {
        let (Some(max_age), Some((first_ns, _))) = (self.max_age, self.reader.span_ns()) else {
            return false;
        };
        let age = now_ns(ClockId::Monotonic).saturating_sub(first_ns);
        Duration::from_nanos(age) >= max_age
    }

    fn flush(&mut self) {
        self.pipeline.output.files.flush();
        self.flushed = Instant::now();
        self.tell();
    }

    /// Tells what has happened to the files.
    fn tell(&mut self) {
        let output = &self.pipeline.output;
        if let Some(window) = self.window
            && output.is_out_of_room()
            && !mem::replace(&mut self.is_full_sent, true)
        {
            self.events.send(SessionEvent::WindowFull(window.number));
        }
        self.events.look_at_budget();
        let errors = self.pipeline.files().errors();
        for error in errors.iter().skip(self.errors_sent) {
            self.events.send(SessionEvent::WriteFailed(error.clone()));
        }
        self.errors_sent = errors.len();
    }

    /// Tells from time to time how far the files are behind, while they are.
    fn tell_lag(&mut self) {
        if self.told_lag.elapsed() < LAG_INTERVAL {
            return;
        }
        self.told_lag = Instant::now();
        let report = self.report(FilesState::Following);
        if report.lag_records > 0 && self.window.is_none() {
            self.events.send(SessionEvent::FilesLag(report));
        }
    }

    /// Records in the recording that were not read yet.
    fn lag(&self) -> u64 {
        let passed = self.records.load(Ordering::Relaxed) + self.reader.damage().removed;
        self.written.load(Ordering::Relaxed).saturating_sub(passed)
    }

    fn report(&self, state: FilesState) -> FilesReport {
        if self.when == FilesWhen::None {
            // Only others wanted the rows.
            return FilesReport::none();
        }
        let output = &self.pipeline.output;
        let records = self.records.load(Ordering::Relaxed);
        let is_removed = output.files.dir().is_some_and(OutputDir::is_removed);
        let missed_records = self.reader.damage().removed;
        FilesReport {
            when: self.when,
            state: if is_removed { FilesState::Removed } else { self.ended.unwrap_or(state) },
            bytes: output.files.bytes(),
            limit_bytes: output.limit_bytes,
            records,
            lag_records: self.lag(),
            missed_records,
            until_ns: (self.pipeline.last_ns > 0).then_some(self.pipeline.last_ns),
        }
    }
}
