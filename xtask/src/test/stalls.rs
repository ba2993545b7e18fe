//! How long a thread that wanted to run could not: what a test that failed may blame the machine for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Sleeps all the time, and notes how late it wakes.
#[derive(Debug)]
pub(super) struct Stalls {
    longest_ms: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

impl Stalls {
    pub(super) fn watch() -> Self {
        let (longest_ms, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (longest, over) = (Arc::clone(&longest_ms), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let before = Instant::now();
                thread::sleep(PAUSE);
                let late = before.elapsed().saturating_sub(PAUSE).as_millis();
                longest.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { longest_ms, is_over, thread: Some(thread) }
    }

    /// The longest until now.
    pub(super) fn longest(&self) -> Duration {
        Duration::from_millis(self.longest_ms.load(Ordering::Relaxed))
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
