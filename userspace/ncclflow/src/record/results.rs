//! The end of a recording, or of a window: aggregates, compressed files, the capture's report,
//! `session.json`.

use std::sync::mpsc::Receiver;

use anyhow::Result;

use super::{
    mailbox::{EventSender, SessionEvent},
    options::Notice,
    session::Taken,
};
use crate::sinks::{
    Aggregated, DiskBudget, MAX_AGGREGATED, OutputDir, SessionReport, SessionState, aggregate_directory,
    compress_files, is_over_max_size,
};
use flow::schema::CommunicatorReport;

/// Completes the folder and the capture. What cannot be written is said, and is part of the report.
pub(super) fn write_results(
    mut taken: Taken,
    report: &mut SessionReport,
    compress: bool,
    notice: &mut dyn FnMut(Notice<'_>),
) -> Result<Option<Aggregated>> {
    taken.pipeline.close_files();
    let files = taken.pipeline.files();
    let mut fail = |report: &mut SessionReport, error: String| {
        notice(Notice::WriteFailed(&error));
        report.errors.push(error);
        report.state = SessionState::WriteFailed;
    };
    report.state = if report.errors.is_empty() { SessionState::Complete } else { SessionState::WriteFailed };
    let aggregated = match files.dir().filter(|_| !files.has_no_flows()) {
        None => None,
        Some(dir) => match aggregate_directory(dir, MAX_AGGREGATED) {
            Ok(aggregated) => {
                report.loss.aggregates_over_max_size = aggregated.over_max_size;
                Some(aggregated)
            }
            Err(error) => {
                fail(report, format!("{error:#}"));
                None
            }
        },
    };
    if compress {
        let (compressed, errors) = compress_files(files);
        // Files of a recording with windows are theirs.
        report.compressed = (compressed.files + compressed.files_left > 0).then_some(compressed);
        for error in errors {
            fail(report, error);
        }
    }
    if let Some(capture) = taken.capture
        && let Err(error) = capture.finish(&report.to_text()?)
    {
        fail(report, format!("writing the capture stopped: {error}"));
    }
    if let Some(dir) = files.dir() {
        if report.max_size.is_some() {
            report.max_size = dir.budget().map(DiskBudget::report);
        }
        if let Err(error) = report.write(dir) {
            fail(report, format!("writing `session.json`: {error}"));
        }
    }
    Ok(aggregated)
}

/// A window that is over.
#[derive(Debug)]
pub(super) struct ClosedWindow {
    pub(super) taken: Taken,
    pub(super) report: SessionReport,
    /// When it was opened, Unix time in milliseconds: part of its files' names.
    pub(super) opened_ms: u64,
}

/// What was found out about windows after their accounts were drawn up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Exported {
    pub(super) aggregates_over_max_size: u64,
}

/// Completes the folders of windows, beside the recording, until no more come.
pub(super) fn export(windows: &Receiver<ClosedWindow>, compress: bool, events: &EventSender) -> Exported {
    let mut exported = Exported::default();
    for ClosedWindow { taken, mut report, opened_ms } in windows {
        let fail = |error: String| events.send(SessionEvent::WriteFailed(error));
        let ranks = taken.pipeline.files().ranks();
        let dir = taken.pipeline.files().dir().map(OutputDir::try_clone);
        let written = write_results(taken, &mut report, compress, &mut |notice| {
            if let Notice::WriteFailed(error) = notice {
                fail(error.to_owned());
            }
        });
        if let Err(error) = written {
            fail(format!("writing a window's results: {error:#}"));
        }
        exported.aggregates_over_max_size += report.loss.aggregates_over_max_size;
        let finish = |dir: std::io::Result<OutputDir>| {
            let dir = dir?;
            let linked = link_by_process(&dir, &ranks, opened_ms);
            // From here on it may be removed, to make room for others.
            dir.complete();
            linked
        };
        match dir.map(finish) {
            Some(Err(error)) if !is_over_max_size(&error) => {
                fail(format!("naming a window's files by their processes: {error}"));
            }
            _ => {}
        }
        events.look_at_budget();
    }
    exported
}

/// Gives the one file of each rank a second name, by its process and the window:
/// `flow_rank0_pid77_1755877674248.json`. Under these names the files of many windows and hosts can lie in
/// one folder.
fn link_by_process(dir: &OutputDir, ranks: &[CommunicatorReport], opened_ms: u64) -> std::io::Result<()> {
    for rank in ranks {
        let folder = dir.open_subfolder(&rank.folder)?;
        let tag = format!("pid{}_{opened_ms}", rank.pid);
        let number = rank.rank;
        for (stem, extension) in [
            ("flow_rank", "json"),
            ("api_rank", "jsonl"),
            ("api_rank", "jsonl.gz"),
            ("megatrace_rank", "log"),
        ] {
            let name = format!("{stem}{number}.{extension}");
            match folder.link(&name, &format!("{stem}{number}_{tag}.{extension}")) {
                // Which of them there is depends on the level; large ones are not aggregated.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                linked => linked?,
            }
        }
    }
    Ok(())
}
