//! Time limits that hold on a busy machine too.

use std::time::Duration;

/// How long this thread has run on a CPU so far.
#[must_use]
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
