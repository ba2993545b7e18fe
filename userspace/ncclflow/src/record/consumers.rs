//! The threads that consume records: one decodes, models and writes; one keeps the capture. Neither stops the
//! other, and neither stops the drain.

use std::{
    mem,
    time::{Duration, Instant},
};

use rustix::time::ClockId;

use super::{
    mailbox::{EventSender, Inbox, KeeperMessage, Mail, NextPipeline, SessionEvent, WriterMessage},
    pipeline::Pipeline,
};
use crate::{capture::CaptureWriter, clock::now_ns, kernel::stream::Batch};

/// How often files are brought up to date for whoever reads along.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

/// How long after the end of a process records of it can come: they wait in the kernel for the drain, which
/// pauses at most [`crate::kernel::stream::MAX_PAUSE`].
const STRAGGLE_NS: u64 = 1_000_000_000;

/// What a consumer has to do next.
enum Step<'a, M> {
    Records(&'a Batch),
    Message(M),
    /// Nothing has come.
    Idle,
    Flush,
    End,
}

/// Has `take` do one step after the other until the inbox is closed. It says whether it wants to be asked
/// again soon, even if nothing comes.
fn consume<M>(inbox: &Inbox<M>, mut take: impl FnMut(Step<'_, M>) -> bool) {
    let (mut flushed, mut unflushed, mut waits) = (Instant::now(), false, false);
    loop {
        let until_flush = unflushed.then(|| FLUSH_INTERVAL.saturating_sub(flushed.elapsed()));
        match inbox.next(until_flush.or(waits.then_some(FLUSH_INTERVAL))) {
            Mail::Records(batch) => {
                waits = take(Step::Records(&batch));
                unflushed = true;
            }
            Mail::Message(message) => waits = take(Step::Message(message)),
            Mail::Nothing => waits = take(Step::Idle),
            Mail::Closed => break,
        }
        if unflushed && flushed.elapsed() >= FLUSH_INTERVAL {
            take(Step::Flush);
            (flushed, unflushed) = (Instant::now(), false);
        }
    }
    take(Step::End);
}

/// Decodes, models and writes until the inbox is closed.
pub(super) fn write_flows(
    inbox: &Inbox<WriterMessage>,
    pipeline: Pipeline,
    events: &EventSender,
) -> Pipeline {
    let mut writer = Writer { inbox, pipeline, events, errors_sent: 0, is_full_sent: false };
    consume(inbox, |step| writer.step(step));
    writer.pipeline
}

struct Writer<'a> {
    inbox: &'a Inbox<WriterMessage>,
    pipeline: Pipeline,
    events: &'a EventSender,
    /// How many of the files' errors were sent.
    errors_sent: usize,
    is_full_sent: bool,
}

impl Writer<'_> {
    fn step(&mut self, step: Step<'_, WriterMessage>) -> bool {
        let pipeline = &mut self.pipeline;
        match step {
            Step::Records(batch) => {
                batch.records().for_each(|record| pipeline.record(record));
                pipeline.close_ended_before(pipeline.last_ns().saturating_sub(STRAGGLE_NS));
            }
            Step::Message(WriterMessage::ProcessEnded { tgid, at_ns }) => pipeline.process_ended(tgid, at_ns),
            Step::Message(WriterMessage::Swap { next, reply }) => {
                // Whoever asked for it waits for it, unless the recording has failed.
                let _ = reply.send(self.swap(next));
            }
            Step::Idle => {
                pipeline.close_ended_before(now_ns(ClockId::Monotonic).saturating_sub(STRAGGLE_NS));
            }
            Step::Flush => pipeline.flush(),
            Step::End => pipeline.finish(),
        }
        self.send_events();
        self.pipeline.waits_for_stragglers()
    }

    /// Takes the records that are there, and goes on with another pipeline. Gives the one before, finished.
    fn swap(&mut self, next: NextPipeline) -> Pipeline {
        while let Some(batch) = self.inbox.next_records() {
            batch.records().for_each(|record| self.pipeline.record(record));
        }
        let next = match next {
            NextPipeline::This(pipeline) => *pipeline,
            NextPipeline::New { files, limit, begin } => {
                let mut next = self.pipeline.renewed(*files, limit);
                for (probe, cpu, hit) in begin {
                    next.gaps_mut().begin_at(probe, cpu, hit);
                }
                next
            }
        };
        let mut before = mem::replace(&mut self.pipeline, next);
        before.finish();
        (self.errors_sent, self.is_full_sent) = (0, false);
        before
    }

    fn send_events(&mut self) {
        for tgid in self.pipeline.take_new_processes() {
            self.events.send(SessionEvent::NewProcess(tgid));
        }
        if self.pipeline.is_full() && !mem::replace(&mut self.is_full_sent, true) {
            self.events.send(SessionEvent::WindowFull);
        }
        self.events.look_at_budget();
        let errors = self.pipeline.files().errors();
        for error in errors.iter().skip(self.errors_sent) {
            self.events.send(SessionEvent::WriteFailed(error.clone()));
        }
        self.errors_sent = errors.len();
    }
}

/// Keeps the records as they are until the inbox is closed.
pub(super) fn keep_capture(
    inbox: &Inbox<KeeperMessage>,
    mut capture: CaptureWriter,
    events: &EventSender,
) -> CaptureWriter {
    consume(inbox, |step| {
        let done = match step {
            Step::Records(batch) => capture.push(batch),
            Step::Flush | Step::End => capture.flush(),
            Step::Idle => Ok(()),
            Step::Message(message) => match message {},
        };
        if let Err(error) = done {
            events.send(SessionEvent::WriteFailed(format!("writing the capture stopped: {error}")));
        }
        false
    });
    capture
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::{kernel::stream::Mailbox, sinks::SessionFiles};

    /// A pipeline without bindings understands no record, and counts them.
    #[test]
    fn a_swap_comes_after_all_records_that_were_there() {
        let (sender, inbox) = Inbox::new(1 << 20);
        let (events, _mailbox) = Mailbox::new().unwrap();
        let events = EventSender { events, budget: None };
        let pipeline = || Pipeline::new(Vec::new(), SessionFiles::nowhere());
        let push = |count| {
            for _ in 0..count {
                let mut batch = Batch::default();
                batch.push(&[0; 100]);
                assert!(sender.records.push(&Arc::new(batch)));
            }
        };
        push(3);
        let (reply, answer) = mpsc::channel();
        let next = NextPipeline::This(Box::new(pipeline()));
        sender.send(WriterMessage::Swap { next, reply }).unwrap();
        let first = pipeline();
        let writer = std::thread::spawn(move || write_flows(&inbox, first, &events));
        assert_eq!(answer.recv().unwrap().undecodable().0, 3);
        push(2);
        sender.records.close();
        assert_eq!(writer.join().unwrap().undecodable().0, 2);
    }
}
