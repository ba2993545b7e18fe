//! Threads that may never come back from what they were sent to do.

use super::{Deadline, Whom};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

/// A thread that answers questions, one after the other. It ends when this is dropped, as soon as it comes
/// back.
#[derive(Debug)]
pub struct Answerer<Q, A> {
    questions: Sender<Q>,
    answers: Receiver<A>,
    thread: JoinHandle<()>,
    tid: Arc<AtomicU32>,
}

impl<Q: Send + 'static, A: Send + 'static> Answerer<Q, A> {
    /// Starts the thread. `begin` runs in it, before the first question, and makes what answers.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start<F: FnMut(Q) -> A>(
        thread: Builder,
        begin: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<Self> {
        let (questions, asked) = mpsc::channel();
        let (answered, answers) = mpsc::channel();
        let tid = Arc::<AtomicU32>::default();
        let of_thread = Arc::clone(&tid);
        let thread = thread.spawn(move || {
            of_thread
                .store(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(), Ordering::Relaxed);
            let mut answer = begin();
            for question in asked {
                // Nobody listens any more.
                if answered.send(answer(question)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { questions, answers, thread, tid })
    }

    /// Asks without waiting. `false`: the thread has ended.
    pub fn ask(&self, question: Q) -> bool {
        self.questions.send(question).is_ok()
    }

    /// Returns the next answer, if it comes in this time.
    pub fn answer(&self, limit: Duration) -> Option<A> {
        self.answers.recv_timeout(limit).ok()
    }

    /// Asks, and returns the answer unless the thread sleeps for so long without giving one. A thread that
    /// has no processor is waited for.
    pub fn ask_and_wait(&self, question: Q, limit: Duration) -> Option<A> {
        let deadline = Deadline::asleep(limit, Whom::Thread(Arc::clone(&self.tid)));
        if !self.ask(question) {
            return None;
        }
        let mut left = deadline.left();
        while left > Duration::ZERO {
            match self.answers.recv_timeout(left) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => left = deadline.left(),
            }
        }
        // It may have come while we had no processor ourselves.
        self.answers.try_recv().ok()
    }

    /// Leaves the thread behind.
    pub fn leave(self) -> JoinHandle<()> {
        self.thread
    }
}

/// Runs `act` in a thread of this name. Returns `None` if that takes longer than `limit`: the thread is left
/// behind, and what it makes in the end is dropped.
///
/// # Errors
/// No thread can be started.
pub fn within<T: Send + 'static>(
    limit: Duration,
    name: &str,
    act: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (sender, made) = mpsc::channel();
    Builder::new().name(name.to_owned()).spawn(move || drop(sender.send(act())))?;
    Ok(made.recv_timeout(limit).ok())
}

#[cfg(test)]
mod tests {
    use std::{hint, thread, time::Instant};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn who_does_not_come_back_is_not_waited_for() {
        assert_eq!(within(LONG, "quick", || 7).unwrap(), Some(7));
        let begun = Instant::now();
        assert!(within(Duration::from_millis(20), "slow", || thread::sleep(LONG)).unwrap().is_none());
        let sleeper = Answerer::start(Builder::new(), || thread::sleep).unwrap();
        assert!(sleeper.ask(Duration::ZERO) && sleeper.answer(LONG).is_some());
        assert!(sleeper.ask(LONG) && sleeper.answer(Duration::from_millis(20)).is_none());
        assert!(!sleeper.leave().is_finished() && begun.elapsed() < LONG / 2);
    }

    #[test]
    fn one_that_works_for_long_is_late_and_not_stuck() {
        let work = |length: Duration| {
            let begun = Instant::now();
            while begun.elapsed() < length {
                hint::spin_loop();
            }
        };
        let limit = Duration::from_millis(50);
        let worker = Answerer::start(Builder::new(), move || work).unwrap();
        assert!(worker.ask_and_wait(limit * 6, limit).is_some());
        let sleeper = Answerer::start(Builder::new(), || thread::sleep).unwrap();
        assert!(sleeper.ask_and_wait(LONG, limit).is_none());
    }

    #[test]
    fn a_thread_that_nobody_asks_any_more_ends() {
        let thread = Answerer::start(Builder::new(), || |number: u32| number).unwrap().leave();
        thread.join().unwrap();
    }
}
