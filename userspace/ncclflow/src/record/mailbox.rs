//! What the threads of a recording tell each other.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use anyhow::{Result, anyhow};

use super::pipeline::Pipeline;
use crate::{
    kernel::stream::{Batch, MailSender, Popped, Queue},
    sinks::{DiskBudget, SessionFiles},
};

/// What the recording's own thread is told by the others.
#[derive(Debug)]
pub(super) enum SessionEvent {
    /// Something could not be written.
    WriteFailed(String),
    /// A first record came of the process with this number, from probes that several processes share.
    NewProcess(u32),
    /// The window has as many ops as it may have.
    WindowFull,
    /// A dump was written, as no probe was hit.
    Dumped(String),
    /// The disk's budget was used up, or windows were removed.
    DiskBudget,
    /// Records go on after some were dropped.
    RecordsResumed,
}

/// Where threads send events.
#[derive(Clone, Debug)]
pub(super) struct EventSender {
    pub(super) events: MailSender<SessionEvent>,
    /// With `--max-size`.
    pub(super) budget: Option<DiskBudget>,
}

impl EventSender {
    pub(super) fn send(&self, event: SessionEvent) {
        self.events.send(event);
    }

    /// After anything that takes of the disk's budget.
    pub(super) fn look_at_budget(&self) {
        if self.budget.as_ref().is_some_and(DiskBudget::has_news) {
            self.send(SessionEvent::DiskBudget);
        }
    }
}

/// What the writer is told, besides the records.
#[derive(Debug)]
pub(super) enum WriterMessage {
    /// The process that has this number was seen to have ended, at this moment of `CLOCK_MONOTONIC`.
    ProcessEnded { tgid: u32, at_ns: u64 },
    /// Take all records that are there, go on with another pipeline, and send back the one before, finished.
    Swap { next: NextPipeline, reply: mpsc::Sender<Pipeline> },
}

/// The capture's keeper gets records alone.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeeperMessage {}

/// What the writer goes on with.
#[derive(Debug)]
pub(super) enum NextPipeline {
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

/// The mailbox of a thread that consumes records. For records there is room up to a limit; there is always
/// room for messages.
#[derive(Debug)]
pub(super) struct Inbox<M> {
    records: Arc<Queue>,
    messages: mpsc::Receiver<M>,
}

/// The sending end of an [`Inbox`]; the drain has the other one, for records.
#[derive(Debug)]
pub(super) struct InboxSender<M> {
    pub(super) records: Arc<Queue>,
    messages: mpsc::Sender<M>,
}

/// What was in an [`Inbox`].
#[derive(Debug)]
pub(super) enum Mail<M> {
    Records(Arc<Batch>),
    Message(M),
    /// Nothing came in that time.
    Nothing,
    /// It is empty, and nothing will come any more.
    Closed,
}

impl<M> Inbox<M> {
    pub(super) fn new(limit_bytes: usize) -> (InboxSender<M>, Self) {
        let (records, (sender, messages)) = (Arc::new(Queue::new(limit_bytes)), mpsc::channel());
        (InboxSender { records: Arc::clone(&records), messages: sender }, Self { records, messages })
    }

    /// Takes a message, or else the oldest records. Waits for either, for at most `timeout`.
    pub(super) fn next(&self, timeout: Option<Duration>) -> Mail<M> {
        if let Ok(message) = self.messages.try_recv() {
            return Mail::Message(message);
        }
        match self.records.pop(timeout) {
            Popped::Batch(batch) => Mail::Records(batch),
            other => match self.messages.try_recv() {
                Ok(message) => Mail::Message(message),
                Err(_) if matches!(other, Popped::Closed) => Mail::Closed,
                Err(_) => Mail::Nothing,
            },
        }
    }

    /// Takes the oldest records. Does not wait.
    pub(super) fn next_records(&self) -> Option<Arc<Batch>> {
        match self.records.pop(Some(Duration::ZERO)) {
            Popped::Batch(batch) => Some(batch),
            Popped::Nothing | Popped::Called | Popped::Closed => None,
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(matches!(inbox.next(None), Mail::Message(1)));
        assert!(matches!(inbox.next(None), Mail::Records(_)));
        assert!(matches!(inbox.next(None), Mail::Nothing), "it was called, and has come");
        assert!(sender.records.push(&records()));
        sender.send(2).unwrap();
        drop(sender);
        assert!(matches!(inbox.next(None), Mail::Message(2)));
        assert!(matches!(inbox.next(None), Mail::Records(_)));
        assert!(matches!(inbox.next(None), Mail::Closed));
    }

    #[test]
    fn a_message_wakes_a_consumer_that_waits() {
        let (sender, inbox) = Inbox::new(1 << 20);
        let consumer = std::thread::spawn(move || inbox.next(None));
        sender.send(3).unwrap();
        assert!(matches!(consumer.join().unwrap(), Mail::Message(3)));
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
}
