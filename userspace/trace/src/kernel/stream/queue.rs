//! A bounded queue of batches between two threads.

use flow::recording::Batch;
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

#[derive(Debug)]
pub enum Popped {
    Batch(Arc<Batch>),
    /// No batch came in that time.
    Nothing,
    /// The queue is empty, and the taker is wanted for something else: [`Queue::call`].
    Called,
    /// The queue is empty, and no batch will come any more.
    Closed,
}

#[derive(Debug, Default)]
struct State {
    batches: VecDeque<Arc<Batch>>,
    bytes: usize,
    peak: usize,
    called: bool,
    closed: bool,
}

#[derive(Debug)]
pub struct Queue {
    limit: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    /// Makes a queue for batches of at most `limit` bytes in all. A larger batch finds room if the queue is
    /// empty.
    pub fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Adds a batch, if there is room for it and somebody to take it. Returns whether it was added.
    #[must_use]
    pub fn push(&self, batch: &Arc<Batch>) -> bool {
        let mut state = self.lock();
        let is_added = !state.closed && self.has_room(&state, batch);
        if is_added {
            self.add(&mut state, batch);
        }
        is_added
    }

    /// Adds a batch, when there is room for it. Returns `false` if there is nobody to take it.
    #[must_use]
    pub fn push_when_there_is_room(&self, batch: &Arc<Batch>) -> bool {
        let is_full = |state: &mut State| !state.closed && !self.has_room(state, batch);
        let state = self.changed.wait_while(self.lock(), is_full);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let is_added = !state.closed;
        if is_added {
            self.add(&mut state, batch);
        }
        is_added
    }

    /// Takes the oldest batch, waiting for one for at most `timeout`.
    pub fn pop(&self, timeout: Option<Duration>) -> Popped {
        let is_idle = |state: &mut State| state.batches.is_empty() && !state.closed && !state.called;
        let state = self.lock();
        let mut state = match timeout {
            None => self.changed.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = self.changed.wait_timeout_while(state, timeout, is_idle);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if let Some(batch) = state.batches.pop_front() {
            state.bytes -= batch.bytes().len();
            drop(state);
            self.changed.notify_all();
            Popped::Batch(batch)
        } else if state.closed {
            Popped::Closed
        } else if std::mem::take(&mut state.called) {
            Popped::Called
        } else {
            Popped::Nothing
        }
    }

    /// Has [`Queue::pop`] return [`Popped::Called`] once the taker has taken the batches that are there.
    pub fn call(&self) {
        self.lock().called = true;
        self.changed.notify_all();
    }

    /// Closes the queue: no more batches come, or none are taken any more.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Returns the bytes that find room when the queue is empty.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Tells whether the queue is more than half full.
    pub fn is_crowded(&self) -> bool {
        self.lock().bytes > self.limit / 2
    }

    /// Tells whether no batch waits in the queue.
    pub fn is_empty(&self) -> bool {
        self.lock().batches.is_empty()
    }

    pub fn peak(&self) -> usize {
        self.lock().peak
    }

    fn has_room(&self, state: &State, batch: &Batch) -> bool {
        state.batches.is_empty() || state.bytes + batch.bytes().len() <= self.limit
    }

    fn add(&self, state: &mut State, batch: &Arc<Batch>) {
        state.bytes += batch.bytes().len();
        state.peak = state.peak.max(state.bytes);
        state.batches.push_back(Arc::clone(batch));
        self.changed.notify_all();
    }

    /// A thread that panicked while it held the lock has left whole values behind.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
