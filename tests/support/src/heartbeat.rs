//! How late a thread is that wakes again and again: for so long the machine stood, or had no processor to give. The kernel
//! does not tell a virtual machine for how long it was stopped.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Between two beats.
const BEAT: Duration = Duration::from_millis(10);
/// So late it is on any machine.
const LATE: Duration = Duration::from_millis(50);

/// It ends when this is dropped.
#[derive(Debug)]
pub struct Heartbeat {
    beats: Arc<Mutex<Beats>>,
    is_over: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Beats {
    last: Instant,
    late: Duration,
    latest: Duration,
}

impl Beats {
    /// With what the beat is late that is due.
    fn now(&self) -> Self {
        let late = self.last.elapsed().saturating_sub(BEAT);
        Self {
            last: Instant::now(),
            late: self.late + late.saturating_sub(LATE),
            latest: self.latest.max(late),
        }
    }
}

impl Heartbeat {
    /// Begins to beat.
    #[must_use]
    pub fn start() -> Self {
        let beats = Arc::new(Mutex::new(Beats {
            last: Instant::now(),
            late: Duration::ZERO,
            latest: Duration::ZERO,
        }));
        let is_over = Arc::new(AtomicBool::new(false));
        let (of_thread, over) = (Arc::clone(&beats), Arc::clone(&is_over));
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                thread::sleep(BEAT);
                let mut beats = of_thread.lock().unwrap_or_else(PoisonError::into_inner);
                *beats = beats.now();
            }
        });
        Self { beats, is_over }
    }

    /// How late it was until now, all in all. What is late on any machine does not count.
    #[must_use]
    pub fn late(&self) -> Duration {
        self.beats().late
    }

    /// How late the latest beat was until now.
    #[must_use]
    pub fn latest(&self) -> Duration {
        self.beats().latest
    }

    fn beats(&self) -> Beats {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner).now()
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
