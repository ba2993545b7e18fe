//! Where the records of a recording go: to the pipeline, and to a capture if one is kept.

use super::pipeline::Pipeline;
use crate::capture::CaptureWriter;

/// Takes records.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) pipeline: Pipeline,
    capture: Option<CaptureWriter>,
    /// In the order in which they happened.
    errors: Vec<String>,
    /// How many of the pipeline's errors are in `errors`.
    taken: usize,
}

impl Intake {
    pub(super) fn new(pipeline: Pipeline, capture: Option<CaptureWriter>) -> Self {
        Self { pipeline, capture, errors: Vec::new(), taken: 0 }
    }

    /// Takes one record as it came from the kernel.
    pub(super) fn record(&mut self, item: &[u8]) {
        if let Some(capture) = &mut self.capture
            && let Err(error) = capture.record(item)
        {
            self.errors.push(format!("writing the capture stopped: {error}"));
        }
        self.pipeline.record(item);
    }

    /// Brings the files up to date for whoever reads along.
    pub(super) fn flush(&mut self) {
        self.pipeline.flush();
        if let Some(capture) = &mut self.capture
            && let Err(error) = capture.flush()
        {
            self.errors.push(format!("writing the capture stopped: {error}"));
        }
    }

    /// Records that the capture lacks.
    pub(super) fn not_captured(&self) -> u64 {
        self.capture.as_ref().map_or(0, CaptureWriter::lost)
    }

    /// What went wrong so far, each failure once, in the order in which it happened.
    pub(super) fn errors(&mut self) -> &[String] {
        let new = self.pipeline.files().errors().get(self.taken..).unwrap_or_default();
        self.errors.extend_from_slice(new);
        self.taken += new.len();
        &self.errors
    }

    /// Ends the capture with the session's report.
    pub(super) fn finish_capture(&mut self, report: &str) -> std::io::Result<()> {
        self.capture.take().map_or(Ok(()), |capture| capture.finish(report))
    }
}
