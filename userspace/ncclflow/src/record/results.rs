//! The end of a recording, or of a window: aggregates, compressed files, the capture's last words, `session.json`.

use anyhow::Result;

use super::{live::Taken, recorder::Notice};
use crate::sinks::{
    Aggregated, DiskBudget, MAX_AGGREGATED, SessionReport, SessionState, aggregate_directory, compress_files,
};

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
