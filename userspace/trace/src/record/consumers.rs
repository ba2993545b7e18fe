//! Threads that take records from the drain. Each has its own inbox, so that none stops another or the drain.
//!
//! A new consumer is a function that works on an [`Inbox`], and a [`Consumer::start`] in [`super::threads`].
//!
//! A full queue drops whole batches, counts them by probe and CPU, and says so in the stream. The state of a
//! consumer survives its panic, for counting only: records in its queue count as dropped, those in the open
//! block as not recorded, and the recording gets no end block.

use crate::kernel::stream::{Outlet, Popped, Queue};
use flow::recording::Batch;
use inspect::privileges;
use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

use super::mailbox::{EventSender, SessionEvent};

/// A consumer as the other threads see it.
#[derive(Debug)]
pub(super) struct Consumer<M, S> {
    pub(super) inbox: InboxSender<M>,
    thread: JoinHandle<Ended<S>>,
}

/// The state that a consumer leaves behind.
#[derive(Debug)]
pub(super) struct Ended<S> {
    pub(super) state: S,
    /// The consumer has panicked. Its state is as it was then, and is good for counting only.
    pub(super) has_failed: bool,
}

impl<M: Send + 'static, S: Send + 'static> Consumer<M, S> {
    /// Starts the consumer. The drain's outlet leads into its inbox, which holds at most `queue_bytes`.
    pub(super) fn start(
        name: &'static str,
        queue_bytes: usize,
        events: &EventSender,
        mut state: S,
        work: impl FnOnce(&Inbox<M>, &mut S, &EventSender) + Send + 'static,
    ) -> io::Result<(Self, Outlet)> {
        let (sender, inbox) = Inbox::new(queue_bytes);
        let resumed = events.clone();
        let outlet = Outlet::new(Arc::clone(&sender.records))
            .on_resumption(move || resumed.send(SessionEvent::RecordsResumed));
        let events = events.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            privileges::keep_only(events.writes);
            // The records that it has taken are counted whatever happens to it.
            let worked = catch_unwind(AssertUnwindSafe(|| work(&inbox, &mut state, &events)));
            drop(inbox);
            if worked.is_err() {
                events.health.fail(format!("the thread `{name}` panicked"));
            }
            Ended { state, has_failed: worked.is_err() }
        })?;
        Ok((Self { inbox: sender, thread }, outlet))
    }

    /// Waits until the consumer has emptied its inbox.
    pub(super) fn end(self) -> Result<Ended<S>> {
        // The drain has closed the inbox already, unless the drain has failed.
        drop(self.inbox);
        join(self.thread)
    }
}

pub(super) fn join<T>(thread: JoinHandle<T>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread of the recording failed"))
}

/// Mailbox of a consumer, with limited room for records and unlimited room for messages.
#[derive(Debug)]
pub(super) struct Inbox<M> {
    records: Arc<Queue>,
    messages: mpsc::Receiver<M>,
}

/// Sending end of an [`Inbox`]; the drain has another one, for records.
#[derive(Debug)]
pub(super) struct InboxSender<M> {
    records: Arc<Queue>,
    messages: mpsc::Sender<M>,
}

/// The next step of a consumer.
#[derive(Debug)]
pub(super) enum Step<M> {
    Records(Arc<Batch>),
    Message(M),
    /// No record or message has come for some time.
    Idle,
    Flush,
    /// The inbox is empty and closed.
    End,
}

impl<M> Inbox<M> {
    fn new(limit_bytes: usize) -> (InboxSender<M>, Self) {
        let (records, (sender, messages)) = (Arc::new(Queue::new(limit_bytes)), mpsc::channel());
        (InboxSender { records: Arc::clone(&records), messages: sender }, Self { records, messages })
    }

    /// Calls `take` for each step until the end. `take` returns whether it wants to be called again soon even
    /// if nothing comes.
    pub(super) fn consume(&self, flush_interval: Duration, mut take: impl FnMut(Step<M>) -> bool) {
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

    /// Takes the oldest records, out of turn.
    pub(super) fn pop(&self, timeout: Option<Duration>) -> Popped {
        self.records.pop(timeout)
    }

    /// Takes a message, or else the oldest records. Waits for at most `timeout`.
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
    /// Closes the queue at the consumer's end or panic: nobody must wait for it.
    fn drop(&mut self) {
        self.records.close();
    }
}

impl<M> InboxSender<M> {
    pub(super) fn send(&self, message: M) -> Result<()> {
        let sent = self.messages.send(message);
        self.records.call();
        sent.map_err(|_| anyhow!("a thread that takes records has failed"))
    }

    /// Sends a message with a place for the answer, and waits for the answer.
    pub(super) fn ask<A>(&self, message: impl FnOnce(mpsc::Sender<A>) -> M) -> Result<A> {
        let (reply, answer) = mpsc::channel();
        self.send(message(reply))?;
        answer.recv().map_err(|_| anyhow!("a thread that takes records has failed"))
    }
}

impl<M> Drop for InboxSender<M> {
    /// Closes the queue at the recording's end or failure: the consumer must not wait for more.
    fn drop(&mut self) {
        self.records.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{health::Health, record::mailbox::Events};

    const PATIENCE: Duration = Duration::from_secs(10);

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
        assert!(!sender.records.push_when_there_is_room(&records()));
        assert!(sender.send(4).is_err());
    }

    #[test]
    fn a_consumer_that_panics_leaves_what_it_had_and_the_session_has_failed() {
        let events = Events::new(None, Health::default(), rustix::thread::CapabilitySet::empty()).unwrap();
        let (consumer, _outlet) =
            Consumer::<(), u32>::start("ncclflow-test", 1 << 20, &events.sender, 0, |inbox, taken, _| {
                inbox.consume(PATIENCE, |step| {
                    if matches!(step, Step::Records(_)) {
                        *taken += 1;
                        assert!(*taken < 2, "as a test wants it");
                    }
                    false
                });
            })
            .unwrap();
        let queue = Arc::clone(&consumer.inbox.records);
        assert!(queue.push(&records()));
        test_support::wait_until("the first is taken", PATIENCE, || queue.is_empty());
        assert!(queue.push(&records()));
        test_support::wait_until("the session has failed", PATIENCE, || events.sender.health.has_failed());
        assert!(!queue.push(&records()), "nobody takes it");
        let Ended { state, has_failed } = consumer.end().unwrap();
        assert_eq!((state, has_failed), (2, true));
        assert_eq!(events.sender.health.failures(), ["the thread `ncclflow-test` panicked"]);
    }
}
