//! Waiting for what a test needs to have happened, in place of sleeping for as long as it usually takes.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until `is_so` holds.
///
/// # Panics
/// If it does not within `limit`; says `what` was awaited.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, is_so: impl FnMut() -> bool) {
    assert!(eventually(limit, is_so), "waited {limit:?} in vain until {what}");
}

/// Waits until `is_so` holds, for `limit` at most. Gives whether it came to hold.
#[must_use]
pub fn eventually(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(PAUSE);
    }
}
