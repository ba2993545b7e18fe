//! The threads that take records from the drain: one decodes, models and writes; one keeps the capture. Neither stops the
//! other, and neither stops the drain.

use std::{
    mem,
    sync::mpsc::{Receiver, Sender},
    time::{Duration, Instant},
};

use rustix::time::ClockId;

use super::pipeline::Pipeline;
use crate::{
    capture::CaptureWriter,
    clock::now_ns,
    kernel::stream::{Batch, Popped, Queue, Waker},
    sinks::{DiskBudget, SessionFiles},
};

/// How often files are brought up to date for whoever reads along.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

/// How long after the end of a process records of it can come: they wait in the kernel for the drain, which pauses at most
/// [`crate::kernel::stream::MAX_PAUSE`].
const STRAGGLE_NS: u64 = 1_000_000_000;

/// What a taker has to say.
#[derive(Debug)]
pub(super) enum News {
    /// Something could not be written.
    Failed(String),
    /// A first record came of a process with this number, of probes that several processes share.
    Process(u32),
    /// As many ops as may be are in the files.
    Full,
    /// A dump was written, as nothing moved.
    Dumped(String),
    /// The disk's budget has something to tell.
    Disk,
}

/// What a taker is told, besides batches.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    /// The process that has this number was seen to have ended, at this moment of the records' clock.
    Ended { tgid: u32, at_ns: u64 },
}

/// What the writer goes on with.
#[derive(Debug)]
pub(super) enum Next {
    /// A pipeline like the one before, with other files.
    New {
        files: Box<SessionFiles>,
        /// Most ops, or calls, that are written.
        limit: Option<u64>,
        /// Probe, CPU, and the number of the first hit that is to come.
        begin: Vec<(u16, u32, u64)>,
    },
    This(Box<Pipeline>),
}

/// The writer goes on with another pipeline once it has taken what is there, and gives back the one before, finished.
#[derive(Debug)]
pub(super) struct Swap {
    pub(super) next: Next,
    pub(super) reply: Sender<Pipeline>,
}

impl Swap {
    fn perform(self, pipeline: &mut Pipeline) {
        let next = match self.next {
            Next::This(pipeline) => *pipeline,
            Next::New { files, limit, begin } => {
                let mut next = pipeline.renewed(*files, limit);
                for (probe, cpu, hit) in begin {
                    next.gaps_mut().begin_at(probe, cpu, hit);
                }
                next
            }
        };
        let mut before = mem::replace(pipeline, next);
        before.finish();
        // Who asked for it waits for it, unless the recording has failed.
        let _ = self.reply.send(before);
    }
}

/// Where a taker says what goes wrong.
#[derive(Clone, Debug)]
pub(super) struct Complaints {
    pub(super) sender: Sender<News>,
    /// Wakes whoever listens.
    pub(super) bell: Waker,
    /// With `--max-size`.
    pub(super) budget: Option<DiskBudget>,
}

impl Complaints {
    pub(super) fn say(&self, news: News) {
        // Nobody listens any more only when the recording is over.
        let _ = self.sender.send(news);
        self.bell.wake();
    }

    /// After anything that takes of the disk's budget.
    pub(super) fn tell_of_disk(&self) {
        if self.budget.as_ref().is_some_and(DiskBudget::has_news) {
            self.say(News::Disk);
        }
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
pub(super) fn write_flows(
    queue: &Queue,
    mut pipeline: Pipeline,
    complaints: &Complaints,
    commands: &Receiver<Command>,
    swaps: &Receiver<Swap>,
) -> Pipeline {
    let _closing = Closing(queue, complaints);
    let (mut told, mut told_full) = (0, false);
    take_batches(queue, |step| {
        for command in commands.try_iter() {
            match command {
                Command::Ended { tgid, at_ns } => pipeline.process_ended(tgid, at_ns),
            }
        }
        if let Ok(swap) = swaps.try_recv() {
            let mut record = |batch: &Batch| batch.records().for_each(|record| pipeline.record(record));
            if let Step::Batch(batch) = step {
                record(batch);
            }
            // What it is to be after may have come since this step began.
            while let Popped::Batch(batch) = queue.pop(Some(Duration::ZERO)) {
                record(&batch);
            }
            swap.perform(&mut pipeline);
            (told, told_full) = (0, false);
            return pipeline.waits_for_stragglers();
        }
        match step {
            Step::Batch(batch) => {
                batch.records().for_each(|record| pipeline.record(record));
                pipeline.close_ended_before(pipeline.last_ns().saturating_sub(STRAGGLE_NS));
            }
            Step::Empty => {
                pipeline.close_ended_before(now_ns(ClockId::Monotonic).saturating_sub(STRAGGLE_NS));
            }
            Step::Flush => pipeline.flush(),
            Step::End => pipeline.finish(),
        }
        for tgid in pipeline.take_new_processes() {
            complaints.say(News::Process(tgid));
        }
        if pipeline.is_full() && !mem::replace(&mut told_full, true) {
            complaints.say(News::Full);
        }
        complaints.tell_of_disk();
        let errors = pipeline.files().errors();
        for error in errors.iter().skip(told) {
            complaints.say(News::Failed(error.clone()));
        }
        told = errors.len();
        pipeline.waits_for_stragglers()
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
            Step::Empty => Ok(()),
        };
        if let Err(error) = done {
            complaints.say(News::Failed(format!("writing the capture stopped: {error}")));
        }
        false
    });
    capture
}

/// What a taker has to do next.
enum Step<'a> {
    Batch(&'a Batch),
    /// No batch is there.
    Empty,
    Flush,
    End,
}

/// `take` says whether it wants to be asked again soon, even if nothing comes.
fn take_batches(queue: &Queue, mut take: impl FnMut(Step<'_>) -> bool) {
    let (mut flushed, mut unflushed, mut waits) = (Instant::now(), false, false);
    loop {
        let until_flush = unflushed.then(|| FLUSH_INTERVAL.saturating_sub(flushed.elapsed()));
        let timeout = until_flush.or(waits.then_some(FLUSH_INTERVAL));
        match queue.pop(timeout) {
            Popped::Batch(batch) => {
                waits = take(Step::Batch(&batch));
                unflushed = true;
            }
            Popped::Nothing | Popped::Called => waits = take(Step::Empty),
            Popped::Closed => break,
        }
        if unflushed && flushed.elapsed() >= FLUSH_INTERVAL {
            take(Step::Flush);
            (flushed, unflushed) = (Instant::now(), false);
        }
    }
    take(Step::End);
}
