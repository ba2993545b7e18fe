//! Completes the folders of windows that are over, beside the recording.

use std::{
    io,
    sync::mpsc::{self, Receiver, Sender},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, anyhow};
use flow::{
    model::ModelCounters,
    schema::{CommunicatorReport, LossReport},
    session::{FilesReport, SessionReport},
};

use super::{
    consumers::join,
    mailbox::{EventSender, SessionEvent},
    make_lines::{LinesRequest, Made, make_lines},
    options::Notice,
    report::{complete_files, end_recording, write_results},
    row_watch::RowWatch,
    threads::Taken,
};
use crate::who::WhoReport;
use inspect::privileges;
use recording::sinks::{OutputDir, host_in_names, is_over_max_size, process_name};

/// A window to which no more records come.
pub(super) struct ClosedWindow {
    pub(super) dir: OutputDir,
    pub(super) taken: Taken,
    pub(super) report: SessionReport,
    /// Reader of the window's recording while it is written.
    pub(super) watch: Option<RowWatch>,
    /// Files that are wanted.
    pub(super) lines: Option<LinesRequest>,
    pub(super) who: WhoReport,
}

/// Sums of all windows.
#[derive(Debug, Default)]
pub(super) struct WindowTotals {
    model: ModelCounters,
    loss: LossReport,
    first_undecodable: Option<String>,
}

impl WindowTotals {
    fn add(&mut self, report: &SessionReport) {
        let SessionReport { loss, model, first_undecodable, .. } = report;
        self.model += model;
        self.loss.records_undecodable += loss.records_undecodable;
        self.loss.records_not_recorded += loss.records_not_recorded;
        self.loss.lines_lost += loss.lines_lost;
        self.loss.lines_over_max_size += loss.lines_over_max_size;
        self.loss.aggregates_over_max_size += loss.aggregates_over_max_size;
        if self.first_undecodable.is_none() {
            self.first_undecodable.clone_from(first_undecodable);
        }
    }

    /// Puts the sums into the report of the whole recording.
    pub(super) fn add_to(self, report: &mut SessionReport) {
        let Self { model, loss, first_undecodable } = self;
        report.model = model;
        report.loss.records_undecodable = loss.records_undecodable;
        report.loss.records_not_recorded = loss.records_not_recorded;
        report.loss.lines_lost = loss.lines_lost;
        report.loss.lines_over_max_size = loss.lines_over_max_size;
        report.loss.aggregates_over_max_size = loss.aggregates_over_max_size;
        report.first_undecodable = first_undecodable;
    }
}

/// The thread, and the channel to it.
#[derive(Debug)]
pub(super) struct Exporter {
    windows: Sender<ClosedWindow>,
    thread: JoinHandle<WindowTotals>,
}

impl Exporter {
    pub(super) fn start(compress: bool, events: &EventSender) -> Result<Self> {
        let (windows, closed) = mpsc::channel();
        let events = events.clone();
        let thread = thread::Builder::new().name("ncclflow-export".to_owned());
        let thread = thread.spawn(move || {
            let guard = events.health.guard("ncclflow-export");
            privileges::keep_only(events.writes);
            let totals = export(&closed, compress, &events);
            guard.done();
            totals
        });
        Ok(Self { windows, thread: thread.context("starting a thread")? })
    }

    pub(super) fn push(&self, window: ClosedWindow) -> Result<()> {
        let sent = self.windows.send(window);
        sent.map_err(|_| anyhow!("the thread that completes windows has failed"))
    }

    /// Tells that no more windows come.
    pub(super) fn close(self) -> WindowsExport {
        WindowsExport(self.thread)
    }
}

/// The thread, when no more windows come to it.
pub(super) struct WindowsExport(JoinHandle<WindowTotals>);

impl WindowsExport {
    pub(super) fn has_ended(&self) -> bool {
        self.0.is_finished()
    }

    pub(super) fn join(self) -> Result<WindowTotals> {
        join(self.0)
    }
}

/// Completes windows until no more come.
fn export(windows: &Receiver<ClosedWindow>, compress: bool, events: &EventSender) -> WindowTotals {
    let mut totals = WindowTotals::default();
    for window in windows {
        complete(window, compress, &mut totals, events);
        events.look_at_budget();
    }
    events.send(SessionEvent::FilesEnded);
    totals
}

fn complete(window: ClosedWindow, compress: bool, totals: &mut WindowTotals, events: &EventSender) {
    let ClosedWindow { dir, mut taken, mut report, watch, lines, who } = window;
    let fail = |error: String| events.send(SessionEvent::WriteFailed(error));
    let notice = &mut |notice: Notice<'_>| {
        if let Notice::WriteFailed(error) = notice {
            fail(error.to_owned());
        }
    };
    // The reader's findings on the window are part of the recording's end.
    let watched = watch.and_then(|watch| watch.finish().ok());
    if let (Some(watched), Some(window)) = (&watched, &mut report.window) {
        window.ops_left_out = watched.pipeline.output.left_out;
        if watched.iterations.is_some() {
            window.iterations.clone_from(&watched.iterations);
        }
    }
    if let Err(error) = end_recording(&mut taken, &mut report, notice) {
        fail(format!("{error:#}"));
    }
    let mut decoded = watched.map(|watched| watched.pipeline);
    report.files = Some(FilesReport::none());
    match lines.map(|lines| make_lines(&lines, &mut |_| events.look_at_budget())) {
        Some(Ok(Made { pipeline, report: files })) => {
            if let (Some(window), Some(found)) = (&mut report.window, &pipeline.output.iterations) {
                window.iterations = Some(found.clone());
            }
            (decoded, report.files) = (Some(pipeline), Some(files));
        }
        Some(Err(error)) => {
            report.files = Some(FilesReport::failed());
            let error = format!("making the files of a window stopped: {error:#}");
            fail(error.clone());
            report.errors.push(error);
        }
        None => {}
    }
    if let Some(decoded) = &decoded {
        complete_files(&mut report, decoded);
    }
    let mut written = decoded.map(|pipeline| pipeline.output.files).unwrap_or_default();
    who.complete(&mut report);
    let ranks = written.ranks();
    let results = write_results(taken, &mut written, Some(&dir), &mut report, compress, notice);
    if let Err(error) = results {
        fail(format!("writing a window's results: {error:#}"));
    }
    totals.add(&report);
    let opened_ms = report.window.as_ref().map_or(0, |window| window.opened_unix_ms);
    let linked = dir.for_lines().and_then(|dir| link_by_process(&dir, &report.host, &ranks, opened_ms));
    // From here on it may be removed, to make room for others.
    dir.complete();
    if let Err(error) = linked
        && !is_over_max_size(&error)
    {
        fail(format!("naming a window's files by their processes: {error}"));
    }
    if let Some(window) = report.window.clone() {
        events.send(SessionEvent::WindowDone(Box::new((window, report))));
    }
}

/// Gives the one file of each rank a second name, by communicator, host, process and window:
/// `flow_rank0_0x8f2c…_node7_pid77_1755877674248.json`. Under these names the files of many windows and hosts
/// can lie in one folder.
fn link_by_process(
    dir: &OutputDir,
    host: &str,
    ranks: &[CommunicatorReport],
    opened_ms: u64,
) -> io::Result<()> {
    for rank in ranks {
        let CommunicatorReport { folder, rank: number, pid, .. } = rank;
        let tag = format!("{folder}_{}_pid{pid}_{opened_ms}", host_in_names(host));
        let folder = dir.open_below(&format!("{}/{folder}", process_name(host, *pid)))?;
        for (stem, extension) in [("flow_rank", "json"), ("api_rank", "jsonl"), ("api_rank", "jsonl.gz")] {
            let name = format!("{stem}{number}.{extension}");
            match folder.link(&name, &format!("{stem}{number}_{tag}.{extension}")) {
                // The level decides which files exist; large ones are not aggregated.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                linked => linked?,
            }
        }
    }
    Ok(())
}
