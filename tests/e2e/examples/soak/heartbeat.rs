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
pub(crate) struct Heartbeat {
    beats: Arc<Mutex<Beats>>,
    is_over: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Beats {
    last: Instant,
    late: Duration,
}

impl Beats {
    /// How late it was until now, with the beat that is due.
    fn late(&self) -> Duration {
        self.late + self.last.elapsed().saturating_sub(BEAT + LATE)
    }
}

impl Heartbeat {
    pub(crate) fn start() -> Self {
        let beats = Arc::new(Mutex::new(Beats { last: Instant::now(), late: Duration::ZERO }));
        let is_over = Arc::new(AtomicBool::new(false));
        let (of_thread, over) = (Arc::clone(&beats), Arc::clone(&is_over));
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                thread::sleep(BEAT);
                let mut beats = of_thread.lock().unwrap_or_else(PoisonError::into_inner);
                *beats = Beats { late: beats.late(), last: Instant::now() };
            }
        });
        Self { beats, is_over }
    }

    /// How late it was until now, all in all.
    pub(crate) fn late(&self) -> Duration {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner).late()
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
