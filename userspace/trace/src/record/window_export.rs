//! Completes the folders of windows that are over, beside the recording.

use std::{
    io,
    sync::mpsc::{self, Receiver, Sender},
    thread::JoinHandle,
};

use anyhow::{Result, anyhow};
use flow::{
    schema::CommunicatorReport,
    session::{FilesReport, FilesState, SessionReport},
};

use super::{
    mailbox::{EventSender, SessionEvent},
    make_lines::{LinesRequest, Made, make_lines},
    options::Notice,
    report::{complete_files, end_recording, write_results},
    threads::Taken,
};
use crate::identity::Registry;
use recording::sinks::{OutputDir, host_in_names, is_over_max_size, process_name};

/// A window to which no more records come.
pub(super) struct ClosedWindow {
    pub(super) dir: OutputDir,
    pub(super) taken: Taken,
    pub(super) report: SessionReport,
    /// Files that are wanted.
    pub(super) lines: Option<LinesRequest>,
    pub(super) who: Registry,
}

/// Adds to `sum` what decoding and writing of a window, or of several, has counted.
pub(super) fn add_results(sum: &mut SessionReport, report: &SessionReport) {
    let SessionReport { loss, model, first_undecodable, .. } = report;
    sum.model += model;
    sum.loss.records_undecodable += loss.records_undecodable;
    sum.loss.records_not_recorded += loss.records_not_recorded;
    sum.loss.lines_lost += loss.lines_lost;
    sum.loss.lines_over_max_size += loss.lines_over_max_size;
    sum.loss.aggregates_over_max_size += loss.aggregates_over_max_size;
    if sum.first_undecodable.is_none() {
        sum.first_undecodable.clone_from(first_undecodable);
    }
}

/// The thread, and the channel to it.
#[derive(Debug)]
pub(super) struct Exporter {
    windows: Sender<ClosedWindow>,
    /// Thread that ends when no more windows can come, and returns their sums.
    pub(super) thread: JoinHandle<SessionReport>,
}

impl Exporter {
    pub(super) fn start(compress: bool, events: &EventSender) -> Result<Self> {
        let (windows, closed) = mpsc::channel();
        let (health, writes, events) = (events.health.clone(), events.writes, events.clone());
        let work = move || export(&closed, compress, &events);
        Ok(Self { windows, thread: health.spawn("ncclflow-export", writes, work)? })
    }

    pub(super) fn push(&self, window: ClosedWindow) -> Result<()> {
        let sent = self.windows.send(window);
        sent.map_err(|_| anyhow!("the thread that completes windows has failed"))
    }
}

/// Completes windows until no more come.
fn export(windows: &Receiver<ClosedWindow>, compress: bool, events: &EventSender) -> SessionReport {
    let mut totals = SessionReport::default();
    for window in windows {
        complete(window, compress, &mut totals, events);
        events.look_at_budget();
    }
    events.send(SessionEvent::LookAgain);
    totals
}

fn complete(window: ClosedWindow, compress: bool, totals: &mut SessionReport, events: &EventSender) {
    let ClosedWindow { dir, mut taken, mut report, lines, who } = window;
    let fail = |error: String| events.send(SessionEvent::WriteFailed(error));
    let notice = &mut |notice: Notice<'_>| {
        if let Notice::WriteFailed(error) = notice {
            fail(error.to_owned());
        }
    };
    // The reader's findings on the window are part of the recording's end.
    let watched = taken.finish_reader();
    if let (Some(watched), Some(window)) = (&watched, &mut report.window) {
        window.ops_left_out = watched.pipeline.output.left_out;
        if watched.iterations.is_some() {
            window.iterations.clone_from(&watched.iterations);
        }
    }
    end_recording(&mut taken, &mut report, notice);
    let made = lines.map(|lines| make_lines(&lines, &mut |_| events.look_at_budget()));
    match &made {
        Some(Ok(Made { pipeline, .. })) => {
            if let (Some(window), Some(found)) = (&mut report.window, &pipeline.output.iterations) {
                window.iterations = Some(found.clone());
            }
        }
        Some(Err(error)) => {
            let error = format!("making the files of a window stopped: {error:#}");
            fail(error.clone());
            report.errors.push(error);
        }
        None => {}
    }
    report.files = Some(FilesReport::of(FilesState::None));
    let mut written = complete_files(&mut report, watched.map(|watched| watched.pipeline), made);
    who.complete(&mut report);
    let ranks = written.ranks();
    write_results(taken, &mut written, Some((&dir, None)), &mut report, compress, notice);
    add_results(totals, &report);
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
