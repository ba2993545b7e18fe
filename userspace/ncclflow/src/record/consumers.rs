//! The threads that take records from the drain. One decodes, models and writes; one keeps the recording, and one the capture. Each has
//! an inbox of its own, so neither stops the other, and neither stops the drain.
//!
//! A new consumer is a function here that works on an [`Inbox`], and a [`Consumer::start`] in
//! [`super::threads`].

use std::{
    convert::Infallible,
    io, mem,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use rustix::time::ClockId;

use super::{
    mailbox::{EventSender, KeeperMessage, SessionEvent, WriterMessage},
    pipeline::Pipeline,
    setup::Bindings,
};
use crate::{
    capture::CaptureWriter,
    clock::now_ns,
    kernel::stream::{Batch, Outlet, Popped, Queue},
    recording::{BLOCK_TIME, Event, RecordingWriter},
    sinks::{Sink as _, is_over_max_size},
};

/// How often files are brought up to date for whoever reads along.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

/// How long after the end of a process records of it can come: they wait in the kernel for the drain, which
/// pauses at most [`crate::kernel::stream::MAX_PAUSE`].
pub(super) const STRAGGLE_NS: u64 = 1_000_000_000;

/// A consumer, as the other threads see it.
#[derive(Debug)]
pub(super) struct Consumer<M, T> {
    pub(super) inbox: InboxSender<M>,
    thread: JoinHandle<T>,
}

impl<M: Send + 'static, T: Send + 'static> Consumer<M, T> {
    /// Starts it. What the drain puts into the outlet comes into its inbox, up to so many bytes at a time.
    pub(super) fn start(
        name: &str,
        queue_bytes: usize,
        events: &EventSender,
        work: impl FnOnce(&Inbox<M>, &EventSender) -> T + Send + 'static,
    ) -> io::Result<(Self, Outlet)> {
        let (sender, inbox) = Inbox::new(queue_bytes);
        let resumed = events.clone();
        let outlet = Outlet::new(Arc::clone(&sender.records))
            .on_resumption(move || resumed.send(SessionEvent::RecordsResumed));
        let events = events.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || work(&inbox, &events))?;
        Ok((Self { inbox: sender, thread }, outlet))
    }

    /// Waits until it has taken what is in its inbox.
    pub(super) fn end(self) -> Result<T> {
        // The drain has closed it already, unless that has failed.
        drop(self.inbox);
        join(self.thread)
    }
}

pub(super) fn join<T>(thread: JoinHandle<T>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread of the recording failed"))
}

/// The mailbox of a consumer. For records there is room up to a limit; there is always room for messages.
#[derive(Debug)]
pub(super) struct Inbox<M> {
    records: Arc<Queue>,
    messages: mpsc::Receiver<M>,
}

/// The sending end of an [`Inbox`]; the drain has the other one, for records.
#[derive(Debug)]
pub(super) struct InboxSender<M> {
    records: Arc<Queue>,
    messages: mpsc::Sender<M>,
}

/// What a consumer has to do next.
#[derive(Debug)]
enum Step<M> {
    Records(Arc<Batch>),
    Message(M),
    /// Nothing has come for some time.
    Idle,
    Flush,
    /// The inbox is empty, and nothing will come any more.
    End,
}

impl<M> Inbox<M> {
    fn new(limit_bytes: usize) -> (InboxSender<M>, Self) {
        let (records, (sender, messages)) = (Arc::new(Queue::new(limit_bytes)), mpsc::channel());
        (InboxSender { records: Arc::clone(&records), messages: sender }, Self { records, messages })
    }

    /// Has `take` do one step after the other until the end. It says whether it wants to be asked again soon,
    /// even if nothing comes.
    fn consume(&self, flush_interval: Duration, mut take: impl FnMut(Step<M>) -> bool) {
        let (mut flushed, mut unflushed, mut waits) = (Instant::now(), false, false);
        loop {
            let until_flush = unflushed.then(|| flush_interval.saturating_sub(flushed.elapsed()));
            let step = self.next(until_flush.or(waits.then_some(flush_interval)));
            let is_end = matches!(step, Step::End);
            unflushed |= matches!(step, Step::Records(_));
            waits = take(step);
            if is_end {
                return;
            }
            if unflushed && flushed.elapsed() >= flush_interval {
                take(Step::Flush);
                (flushed, unflushed) = (Instant::now(), false);
            }
        }
    }

    /// Takes a message, or else the oldest records. Waits for either, for at most `timeout`.
    fn next(&self, timeout: Option<Duration>) -> Step<M> {
        if let Ok(message) = self.messages.try_recv() {
            return Step::Message(message);
        }
        match self.records.pop(timeout) {
            Popped::Batch(batch) => Step::Records(batch),
            other => match self.messages.try_recv() {
                Ok(message) => Step::Message(message),
                Err(_) if matches!(other, Popped::Closed) => Step::End,
                Err(_) => Step::Idle,
            },
        }
    }
}

impl<M> Drop for Inbox<M> {
    /// The consumer has ended, or has panicked: nobody must wait for it.
    fn drop(&mut self) {
        self.records.close();
    }
}

impl<M> InboxSender<M> {
    pub(super) fn send(&self, message: M) -> Result<()> {
        let sent = self.messages.send(message);
        self.records.call();
        sent.map_err(|_| anyhow!("the thread that writes has failed"))
    }
}

impl<M> Drop for InboxSender<M> {
    /// The recording is over, or has failed: the consumer must not wait for more.
    fn drop(&mut self) {
        self.records.close();
    }
}

/// Decodes, models and writes until the inbox is closed.
pub(super) fn write_flows(
    inbox: &Inbox<WriterMessage>,
    pipeline: Pipeline,
    events: &EventSender,
) -> Pipeline {
    let mut writer = Writer { inbox, pipeline, events, errors_sent: 0, is_full_sent: false };
    inbox.consume(FLUSH_INTERVAL, |step| writer.step(step));
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
    fn step(&mut self, step: Step<WriterMessage>) -> bool {
        let pipeline = &mut self.pipeline;
        match step {
            Step::Records(batch) => {
                batch.records().for_each(|record| pipeline.record(record));
                pipeline.close_ended_before(pipeline.last_ns.saturating_sub(STRAGGLE_NS));
            }
            Step::Message(WriterMessage::ProcessEnded { tgid, at_ns }) => {
                pipeline.ended_ns.insert(tgid, at_ns);
            }
            Step::Message(WriterMessage::Swap { next, reply }) => {
                // Whoever asked for it waits for it, unless the recording has failed.
                let _ = reply.send(self.swap(*next));
            }
            Step::Idle => {
                pipeline.close_ended_before(now_ns(ClockId::Monotonic).saturating_sub(STRAGGLE_NS));
            }
            Step::Flush => pipeline.output.files.flush(),
            Step::End => pipeline.finish(),
        }
        self.send_events();
        !self.pipeline.ended_ns.is_empty()
    }

    /// Takes the records that are there, and goes on with another pipeline. Gives the one before, finished.
    fn swap(&mut self, next: Pipeline) -> Pipeline {
        while let Popped::Batch(batch) = self.inbox.records.pop(Some(Duration::ZERO)) {
            batch.records().for_each(|record| self.pipeline.record(record));
        }
        let mut before = mem::replace(&mut self.pipeline, next);
        before.finish();
        (self.errors_sent, self.is_full_sent) = (0, false);
        before
    }

    fn send_events(&mut self) {
        for tgid in mem::take(&mut self.pipeline.new_processes) {
            self.events.send(SessionEvent::NewProcess(tgid));
        }
        if self.pipeline.output.is_full() && !mem::replace(&mut self.is_full_sent, true) {
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

/// Keeps the records in the recording until the inbox is closed. Without a recording, between windows, they are passed over.
pub(super) fn keep_recording(
    inbox: &Inbox<KeeperMessage>,
    recording: Option<Box<RecordingWriter>>,
    bindings: Bindings,
    events: &EventSender,
) -> Option<Box<RecordingWriter>> {
    let mut keeper = Keeper { inbox, recording, bindings, events, has_failed: false };
    inbox.consume(BLOCK_TIME, |step| {
        keeper.step(step);
        false
    });
    keeper.recording
}

struct Keeper<'a> {
    inbox: &'a Inbox<KeeperMessage>,
    recording: Option<Box<RecordingWriter>>,
    bindings: Bindings,
    events: &'a EventSender,
    /// The last block could not be written. It is said once, until one can be again.
    has_failed: bool,
}

impl Keeper<'_> {
    fn step(&mut self, step: Step<KeeperMessage>) {
        match step {
            Step::Records(batch) => self.push(&batch),
            Step::Message(KeeperMessage::ProcessEnded { tgid, at_ns }) => {
                self.write(|recording| recording.push_event(&Event::ProcessEnded { tgid, at_ns }));
            }
            Step::Message(KeeperMessage::Swap { next, reply }) => {
                while let Popped::Batch(batch) = self.inbox.records.pop(Some(Duration::ZERO)) {
                    self.push(&batch);
                }
                self.write(RecordingWriter::close_block);
                // Whoever asked for it waits for it, unless the recording has failed.
                let _ = reply.send(mem::replace(&mut self.recording, next));
                self.has_failed = false;
            }
            Step::Idle => {}
            Step::Flush | Step::End => self.write(RecordingWriter::close_block),
        }
    }

    fn push(&mut self, batch: &Arc<Batch>) {
        let Self { recording: Some(recording), bindings, .. } = self else { return };
        // The binding of a cookie is there before its probe is.
        recording.bind(|known| bindings.update(known));
        self.write(|recording| recording.push(batch));
    }

    fn write(&mut self, write: impl FnOnce(&mut RecordingWriter) -> io::Result<()>) {
        let Some(recording) = &mut self.recording else { return };
        let blocks = recording.totals().blocks;
        let written = write(recording);
        self.events.look_at_budget();
        match written {
            Err(error) => {
                if !mem::replace(&mut self.has_failed, true) && !is_over_max_size(&error) {
                    let error = format!(
                        "writing the recording failed: {error}; it goes on when it can be written again"
                    );
                    self.events.send(SessionEvent::WriteFailed(error));
                }
            }
            // Records that only wait for their block say nothing of the disk.
            Ok(()) => self.has_failed &= recording.totals().blocks == blocks,
        }
    }
}

/// Keeps the records as they are until the inbox is closed.
pub(super) fn keep_capture(
    inbox: &Inbox<Infallible>,
    mut capture: CaptureWriter,
    events: &EventSender,
) -> CaptureWriter {
    inbox.consume(FLUSH_INTERVAL, |step| {
        let done = match step {
            Step::Records(batch) => capture.push(&batch),
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
    use super::*;
    use crate::{kernel::stream::Mailbox, sinks::SessionFiles};

    fn records() -> Arc<Batch> {
        let mut batch = Batch::default();
        batch.push(&[0; 100]);
        Arc::new(batch)
    }

    #[test]
    fn messages_come_first_and_all_come_before_the_end() {
        let (sender, inbox) = Inbox::new(1 << 20);
        assert!(sender.records.push(&records()));
        sender.send(1).unwrap();
        assert!(matches!(inbox.next(None), Step::Message(1)));
        assert!(matches!(inbox.next(None), Step::Records(_)));
        assert!(matches!(inbox.next(None), Step::Idle), "it was called, and has come");
        assert!(sender.records.push(&records()));
        sender.send(2).unwrap();
        drop(sender);
        assert!(matches!(inbox.next(None), Step::Message(2)));
        assert!(matches!(inbox.next(None), Step::Records(_)));
        assert!(matches!(inbox.next(None), Step::End));
    }

    #[test]
    fn a_message_wakes_a_consumer_that_waits() {
        let (sender, inbox) = Inbox::new(1 << 20);
        let consumer = std::thread::spawn(move || inbox.next(None));
        sender.send(3).unwrap();
        assert!(matches!(consumer.join().unwrap(), Step::Message(3)));
    }

    #[test]
    fn nobody_waits_for_a_consumer_that_has_ended() {
        let (sender, inbox) = Inbox::new(10);
        assert!(sender.records.push(&records()), "one always finds room");
        assert!(!sender.records.push(&records()));
        drop(inbox);
        sender.records.push_when_there_is_room(&records());
        assert!(sender.send(4).is_err());
    }

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
        let next = Box::new(pipeline());
        sender.send(WriterMessage::Swap { next, reply }).unwrap();
        let first = pipeline();
        let writer = std::thread::spawn(move || write_flows(&inbox, first, &events));
        assert_eq!(answer.recv().unwrap().undecodable, 3);
        push(2);
        sender.records.close();
        assert_eq!(writer.join().unwrap().undecodable, 2);
    }
}
