//! The threads that take records from the drain: one decodes, models and writes; one keeps the capture. Neither stops the
//! other, and neither stops the drain.

use std::{
    sync::mpsc::Sender,
    time::{Duration, Instant},
};

use super::pipeline::Pipeline;
use crate::{
    capture::CaptureWriter,
    stream::{Popped, Queue, Waker},
};

/// How often files are brought up to date for whoever reads along.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

/// Where a taker says what goes wrong.
#[derive(Clone, Debug)]
pub(super) struct Complaints {
    pub(super) sender: Sender<String>,
    /// Wakes whoever listens.
    pub(super) bell: Waker,
}

impl Complaints {
    fn say(&self, error: String) {
        // Nobody listens any more only when the recording is over.
        let _ = self.sender.send(error);
        self.bell.wake();
    }
}

/// The taker is gone, however that came about: nobody must wait for it.
struct Closing<'a>(&'a Queue, &'a Complaints);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
        self.1.bell.wake();
    }
}

/// Decodes, models and writes until the queue is closed.
pub(super) fn write_flows(queue: &Queue, mut pipeline: Pipeline, complaints: &Complaints) -> Pipeline {
    let _closing = Closing(queue, complaints);
    let mut told = 0;
    take_batches(queue, |step| {
        match step {
            Step::Batch(batch) => batch.records().for_each(|record| pipeline.record(record)),
            Step::Flush => pipeline.flush(),
            Step::End => pipeline.finish(),
        }
        let errors = pipeline.files().errors();
        for error in errors.iter().skip(told) {
            complaints.say(error.clone());
        }
        told = errors.len();
    });
    pipeline
}

/// Keeps the records as they are until the queue is closed.
pub(super) fn keep_capture(
    queue: &Queue,
    mut capture: CaptureWriter,
    complaints: &Complaints,
) -> CaptureWriter {
    let _closing = Closing(queue, complaints);
    take_batches(queue, |step| {
        let done = match step {
            Step::Batch(batch) => capture.push(batch),
            Step::Flush | Step::End => capture.flush(),
        };
        if let Err(error) = done {
            complaints.say(format!("writing the capture stopped: {error}"));
        }
    });
    capture
}

/// What a taker has to do next.
enum Step<'a> {
    Batch(&'a crate::stream::Batch),
    Flush,
    End,
}

fn take_batches(queue: &Queue, mut take: impl FnMut(Step<'_>)) {
    let (mut flushed, mut unflushed) = (Instant::now(), false);
    loop {
        let timeout = unflushed.then(|| FLUSH_INTERVAL.saturating_sub(flushed.elapsed()));
        match queue.pop(timeout) {
            Popped::Batch(batch) => {
                take(Step::Batch(&batch));
                unflushed = true;
            }
            Popped::Nothing => {}
            Popped::Closed => break,
        }
        if unflushed && flushed.elapsed() >= FLUSH_INTERVAL {
            take(Step::Flush);
            (flushed, unflushed) = (Instant::now(), false);
        }
    }
    take(Step::End);
}
