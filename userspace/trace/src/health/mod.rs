//! Tells whether a session is well: its threads live, and records are being moved out of the kernel.
//!
//! The answer goes to three: the recording, which ends as failed if a thread has; systemd, whose watchdog is
//! fed by each pass of the drain; and clients of `/healthz` and `/readyz`.
//!
//! Each thread holds a guard while it works. One that panics, or ends too early, leaves a failure and wakes
//! the recording's own thread, which ends the session in the normal way: it clears the words, takes the
//! records that are left, and detaches. If `ncclflow-dump` fails, which reads tenants' memory for
//! `--on-hang`, the session reports an error and goes on.

mod systemd;

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use inspect::privileges;
use rustix::thread::CapabilitySet;

use crate::kernel::stream::Waker;
use systemd::Watchdog;

/// Time without a pass after which a drain is stuck. It pauses for at most
/// [`MAX_PAUSE`](crate::kernel::stream::MAX_PAUSE).
const STUCK: Duration = Duration::from_secs(10);

/// Most failures that are kept: a thread fails once, and there are a dozen.
const MAX_FAILURES: usize = 64;

/// Health of a session. All clones are of the same session.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Shared>);

/// Work of a session, for the words of its health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subject {
    #[default]
    Recording,
    /// Reading counters again and again, without a probe.
    Watching,
}

#[derive(Debug)]
struct Shared {
    begun: Instant,
    /// Milliseconds from `begun` to the drain's last pass.
    passed_ms: AtomicU64,
    state: Mutex<State>,
    /// Waker of the thread that ends the recording.
    waker: OnceLock<Waker>,
    watchdog: Watchdog,
    subject: Subject,
    /// Processes that may not be looked at.
    denied: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    failures: Vec<String>,
    /// Why nothing can be seen.
    blind: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Libraries are resolved, and probes attached.
    #[default]
    Beginning,
    Recording,
    /// No more records are taken: files are completed, and probes detached.
    Ending,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            passed_ms: AtomicU64::new(0),
            state: Mutex::default(),
            waker: OnceLock::new(),
            watchdog: Watchdog::of_environment(),
            subject: Subject::default(),
            denied: AtomicUsize::new(0),
        }
    }
}

impl Health {
    /// Makes the health of a session that does this.
    pub fn of(subject: Subject) -> Self {
        Self(Arc::new(Shared { subject, ..Shared::default() }))
    }

    /// Sets the waker that a failure wakes.
    pub fn wakes(&self, waker: &Waker) {
        // A session has one thread that ends it.
        let _ = self.0.waker.set(waker.clone());
    }

    /// Returns a guard for a thread that the session cannot do without: if the thread ends before
    /// [`Guard::done`], the session has failed.
    pub fn guard(&self, thread: &'static str) -> Guard {
        Guard { health: self.clone(), thread, is_done: false }
    }

    /// Starts a thread that the session cannot do without: if it panics, the session has failed. The thread
    /// keeps only these capabilities.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        name: &'static str,
        capabilities: CapabilitySet,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        let health = self.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let guard = health.guard(name);
            privileges::keep_only(capabilities);
            let made = work();
            guard.done();
            made
        });
        thread.context("starting a thread")
    }

    /// Notes that the session has failed, and ends it.
    pub fn fail(&self, why: String) {
        self.with(|state| {
            if state.failures.len() < MAX_FAILURES {
                state.failures.push(why);
            }
        });
        if let Some(waker) = self.0.waker.get() {
            waker.wake();
        }
    }

    /// Returns the failures until now.
    pub fn failures(&self) -> Vec<String> {
        self.with(|state| state.failures.clone())
    }

    pub fn has_failed(&self) -> bool {
        self.with(|state| !state.failures.is_empty())
    }

    /// Notes that records are taken from now on.
    pub fn begin_recording(&self) {
        self.pass();
        self.with(|state| state.stage = Stage::Recording);
        systemd::ready();
    }

    /// Notes that no more records are taken.
    pub fn end_recording(&self) {
        self.with(|state| state.stage = Stage::Ending);
        systemd::stopping();
    }

    /// Notes a pass of the drain, or a reading of counters. Nothing else calls this, because it feeds
    /// systemd's watchdog.
    pub fn pass(&self) {
        let now_ms = self.now_ms();
        self.0.passed_ms.store(now_ms, Ordering::Relaxed);
        self.0.watchdog.feed(now_ms);
    }

    /// Notes how many processes may not be looked at and, where most may not, so that nothing can be seen,
    /// why.
    pub fn set_sight(&self, denied: usize, blind: Option<String>) {
        self.0.denied.store(denied, Ordering::Relaxed);
        self.with(|state| state.blind = blind);
    }

    /// Returns the number of processes that may not be looked at.
    pub fn denied(&self) -> usize {
        self.0.denied.load(Ordering::Relaxed)
    }

    /// Tells whether the session is alive, and if not, why.
    pub fn is_alive(&self) -> Result<(), String> {
        self.is_alive_at(self.now_ms())
    }

    fn now_ms(&self) -> u64 {
        ms(self.0.begun.elapsed())
    }

    fn is_alive_at(&self, now_ms: u64) -> Result<(), String> {
        let (stage, failure) = self.with(|state| (state.stage, state.failures.first().cloned()));
        if let Some(why) = failure {
            return Err(why);
        }
        let silent_ms = now_ms.saturating_sub(self.0.passed_ms.load(Ordering::Relaxed));
        if stage == Stage::Recording && silent_ms > ms(STUCK) {
            let what = match self.0.subject {
                Subject::Recording => "records have not been taken",
                Subject::Watching => "counters have not been read",
            };
            return Err(format!("{what} for {} s", silent_ms / 1000));
        }
        Ok(())
    }

    /// Tells whether hits are recorded, and if not, why.
    pub fn is_ready(&self) -> Result<(), String> {
        self.is_alive()?;
        let why = match (self.with(|state| state.stage), self.0.subject) {
            (Stage::Recording, _) => {
                return self.with(|state| state.blind.clone()).map_or(Ok(()), Err);
            }
            (Stage::Beginning, Subject::Recording) => "probes are being attached",
            (Stage::Beginning, Subject::Watching) => "processes are being looked for",
            (Stage::Ending, Subject::Recording) => "the recording is over",
            (Stage::Ending, Subject::Watching) => "the watch is over",
        };
        Err(why.to_owned())
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        // A panic leaves whole values behind.
        work(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Guard that a thread holds while it works.
#[derive(Debug)]
pub struct Guard {
    health: Health,
    thread: &'static str,
    is_done: bool,
}

impl Guard {
    /// Ends the guard without a failure: the thread has ended because there is nothing left to do.
    pub fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_done {
            let how = if thread::panicking() { "panicked" } else { "ended too early" };
            self.health.fail(format!("the thread `{}` {how}", self.thread));
        }
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_or_ends_too_early_is_a_failure_and_one_that_is_done_is_none() {
        let health = Health::default();
        let [good, early, panicking] = ["good", "early", "panicking"].map(|name| health.guard(name));
        thread::spawn(move || good.done()).join().unwrap();
        assert!(!health.has_failed());
        thread::spawn(move || drop(early)).join().unwrap();
        let panicked = thread::spawn(move || {
            let _held = panicking;
            panic!("as a test wants it");
        });
        assert!(panicked.join().is_err());
        assert_eq!(
            health.failures(),
            ["the thread `early` ended too early", "the thread `panicking` panicked"]
        );
    }

    #[test]
    fn a_failure_wakes_whoever_ends_the_recording() {
        let (health, waker) = (Health::default(), Waker::new().unwrap());
        health.wakes(&waker);
        let is_awake = || {
            use std::os::fd::AsFd as _;
            crate::kernel::stream::wait_for(&[waker.as_fd()], Some(Duration::ZERO)).unwrap()[0]
        };
        assert!(!is_awake());
        health.fail("broken".to_owned());
        assert!(is_awake());
    }

    #[test]
    fn a_session_is_ready_while_it_records_and_alive_while_its_drain_comes_round() {
        let health = Health::default();
        assert!(health.is_alive().is_ok() && health.is_ready().is_err(), "it begins");
        // Attaching has no time limit.
        assert!(health.is_alive_at(1_000_000).is_ok());
        health.begin_recording();
        assert!(health.is_ready().is_ok());
        assert!(health.is_alive_at(9_000).is_ok());
        let why = health.is_alive_at(20_000).unwrap_err();
        assert!(why.contains("not been taken"), "{why}");
        health.end_recording();
        assert!(health.is_alive_at(1_000_000).is_ok(), "files may take long");
        assert!(health.is_ready().is_err());
        health.fail("broken".to_owned());
        assert_eq!(health.is_alive(), Err("broken".to_owned()));
    }
}
