//! The clocks of records and reports.

use rustix::time::{ClockId, clock_gettime};

/// Returns the nanoseconds to add to times of records, now, for wall time. The value changes when the clock
/// is set, and while the host sleeps, as `CLOCK_MONOTONIC` stands still then.
pub fn realtime_offset_ns() -> u64 {
    now_ns(ClockId::Realtime).saturating_sub(now_ns(ClockId::Monotonic))
}

/// Returns the nanoseconds of a clock; records have `CLOCK_MONOTONIC`.
pub fn now_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}
