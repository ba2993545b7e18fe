//! Where the records of a recording go: to the pipeline, and to a capture if one is kept.

use super::pipeline::Pipeline;
use crate::capture::CaptureWriter;

/// Takes records.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) pipeline: Pipeline,
    capture: Option<CaptureWriter>,
    capture_error: Option<String>,
}

impl Intake {
    pub(super) fn new(pipeline: Pipeline, capture: Option<CaptureWriter>) -> Self {
        Self { pipeline, capture, capture_error: None }
    }

    /// Takes one record as it came from the kernel.
    pub(super) fn record(&mut self, item: &[u8]) {
        if let Some(capture) = &mut self.capture
            && let Err(error) = capture.record(item)
        {
            self.capture_error = Some(format!("writing the capture stopped: {error}"));
        }
        self.pipeline.record(item);
    }

    /// Records that the capture lacks.
    pub(super) fn not_captured(&self) -> u64 {
        self.capture.as_ref().map_or(0, CaptureWriter::lost)
    }

    /// What went wrong so far; each failure once.
    pub(super) fn errors(&self) -> impl Iterator<Item = &String> {
        self.pipeline.files().errors().iter().chain(&self.capture_error)
    }

    /// Ends the capture with the session's report.
    pub(super) fn finish_capture(&mut self, report: &str) -> std::io::Result<()> {
        self.capture.take().map_or(Ok(()), |capture| capture.finish(report))
    }
}
