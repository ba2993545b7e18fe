//! The end of a recording, or of a window: aggregates, the capture's last words, `session.json`.

use anyhow::Result;

use super::{live::Taken, recorder::Notice};
use crate::sink::{Aggregated, SessionReport, SessionState, aggregate_directory};

/// Larger `flow_steps` files are not aggregated when the recording ends: the aggregate has three times their size, and few
/// readers take a JSON document of gigabytes. `ncclflow aggregate` does it on request.
pub(super) const MAX_AGGREGATED: u64 = 256 << 20;

/// Completes the folder and the capture. What cannot be written is said, and is part of the report.
pub(super) fn write_results(
    taken: Taken,
    report: &mut SessionReport,
    notice: &mut dyn FnMut(Notice<'_>),
) -> Result<Option<Aggregated>> {
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
            Ok(aggregated) => Some(aggregated),
            Err(error) => {
                fail(report, format!("{error:#}"));
                None
            }
        },
    };
    if let Some(capture) = taken.capture
        && let Err(error) = capture.finish(&report.to_text()?)
    {
        fail(report, format!("writing the capture stopped: {error}"));
    }
    if let Some(dir) = files.dir()
        && let Err(error) = report.write(dir)
    {
        fail(report, format!("writing `session.json`: {error}"));
    }
    Ok(aggregated)
}
