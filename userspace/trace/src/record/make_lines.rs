//! Makes the line files of a complete recording, as `export` does: decode → model → rows → files.
//!
//! Where there is no room for more they end after a whole op; the rest can be exported later.

use inspect::{failpoint, privileges};
use recording::{
    format::Selection,
    rows::{Pipeline, Read, ReadPart, RecordedSession},
    sinks::{OutputDir, SessionFiles},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, anyhow};

use super::mailbox::{EventSender, SessionEvent};
use flow::session::{FilesReport, FilesState};

/// Request to make files.
#[derive(Debug)]
pub(super) struct LinesRequest {
    /// Folder of the session or the window that has the recording.
    pub(super) dir: OutputDir,
    /// Most bytes of all files.
    pub(super) limit_bytes: Option<u64>,
    /// Most ops or calls of a window.
    pub(super) max_ops: Option<u64>,
    /// Keep the names of all files, to compress them.
    pub(super) keeps_names: bool,
    /// When set, the files end where they are.
    pub(super) stop: Arc<AtomicBool>,
}

/// Files that are as complete as they will become.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) pipeline: Pipeline,
    pub(super) report: FilesReport,
}

/// Makes the files. `progress` gets the bytes of the recording that were read.
pub(super) fn make_lines(request: &LinesRequest, progress: &mut dyn FnMut(u64)) -> Result<Made> {
    failpoint::here("files")?;
    let LinesRequest { dir, limit_bytes, max_ops, keeps_names, stop } = request;
    let recorded = RecordedSession::open_dir(dir.try_clone()?)?;
    let layout = recorded.layout();
    let lines = dir.for_lines()?;
    let files = if recorded.session().host.is_some() {
        SessionFiles::of_node(lines, layout, *keeps_names)
    } else {
        SessionFiles::new(lines, layout)
    };
    let mut pipeline = recorded.pipeline(files);
    pipeline.output.room = *max_ops;
    pipeline.output.limit_bytes = *limit_bytes;
    let part = ReadPart {
        selection: Selection::ALL,
        until_ns: u64::MAX,
        progress,
        goes_on: &mut || (),
        is_stopped: &|| stop.load(Ordering::Relaxed),
    };
    let read = recorded.read_into(&mut pipeline, part)?;
    let report = report(&pipeline, &read, stop.load(Ordering::Relaxed));
    Ok(Made { pipeline, report })
}

fn report(pipeline: &Pipeline, read: &Read, is_stopped: bool) -> FilesReport {
    let output = &pipeline.output;
    let state = if output.files.dir().is_some_and(OutputDir::is_removed) {
        FilesState::Removed
    } else if output.is_over_limit() {
        FilesState::Limit
    } else if is_stopped {
        FilesState::Stopped
    } else {
        FilesState::Complete
    };
    FilesReport {
        state,
        bytes: output.files.bytes(),
        limit_bytes: output.limit_bytes,
        records: read.records,
        missed_records: read.damage.removed,
        until_ns: (pipeline.last_ns > 0).then_some(pipeline.last_ns),
    }
}

/// A thread that makes the files while probes are detached.
#[derive(Debug)]
pub(super) struct LinesThread {
    /// Bytes of the recording that were read.
    read: Arc<AtomicU64>,
    thread: JoinHandle<Result<Made>>,
}

impl LinesThread {
    pub(super) fn start(request: LinesRequest, events: &EventSender) -> Result<Self> {
        let (read, events) = (Arc::<AtomicU64>::default(), events.clone());
        let told = Arc::clone(&read);
        let make = move || {
            let guard = events.health.guard("ncclflow-files");
            privileges::keep_only(events.writes);
            let made = make_lines(&request, &mut |bytes| {
                told.store(bytes, Ordering::Relaxed);
                events.look_at_budget();
            });
            if let Err(error) = &made {
                // Files can be made from the recording later.
                events.send(SessionEvent::WriteFailed(format!("making the files stopped: {error:#}")));
            }
            events.send(SessionEvent::FilesEnded);
            guard.done();
            made
        };
        let thread = thread::Builder::new().name("ncclflow-files".to_owned()).spawn(make);
        Ok(Self { read, thread: thread.context("starting a thread")? })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Returns the bytes of the recording that were read until now.
    pub(super) fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Waits for the end.
    pub(super) fn join(self) -> Result<Made> {
        self.thread.join().map_err(|_| anyhow!("the thread that makes the files failed"))?
    }
}
