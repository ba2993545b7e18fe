//! systemd's protocol: sd_notify(3). Without `NOTIFY_SOCKET` in the environment nothing is sent.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use sd_notify::NotifyState;

/// Parts of the watchdog's time in which it is fed once. systemd wants two; a drain that pauses and a busy
/// host need more.
const FEEDS: u32 = 5;

/// systemd's watchdog: the unit's `WatchdogSec`, as `WATCHDOG_USEC` of the environment says it.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// Time between two feeds; `None` if there is no watchdog.
    every: Option<Duration>,
    begun: Instant,
    /// Milliseconds from `begun` to the next feed.
    next_ms: AtomicU64,
}

impl Watchdog {
    pub(super) fn of_environment() -> Self {
        Self::of(sd_notify::watchdog_enabled())
    }

    fn of(time: Option<Duration>) -> Self {
        Self { every: time.map(|time| time / FEEDS), begun: Instant::now(), next_ms: AtomicU64::new(0) }
    }

    /// Feeds the watchdog, if it is time.
    pub(super) fn feed(&self) {
        if self.is_due(self.begun.elapsed()) {
            // If systemd does not listen, its watchdog says so.
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    }

    fn is_due(&self, now: Duration) -> bool {
        let Some(every) = self.every else { return false };
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let is_due = ms(now) >= self.next_ms.load(Ordering::Relaxed);
        if is_due {
            self.next_ms.store(ms(now.saturating_add(every)), Ordering::Relaxed);
        }
        is_due
    }
}

/// Tells systemd that hits are recorded from now on.
pub(super) fn ready() {
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}

/// Tells systemd that the rest ends by itself. Its watchdog waits no more, and the unit's `TimeoutStopSec`
/// counts.
pub(super) fn stopping() {
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_fed_several_times_in_its_time_and_not_at_each_pass() {
        let watchdog = Watchdog::of(Some(Duration::from_secs(10)));
        let feeds = (0..10_000).filter(|ms| watchdog.is_due(Duration::from_millis(*ms))).count();
        assert_eq!(feeds, 5);
        let none = Watchdog::of(None);
        assert!(!none.is_due(Duration::from_secs(100)));
    }
}
