//! Children that may sleep in the kernel, out of the reach of SIGKILL.

use std::{
    process::{Child, ExitStatus},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Time in which a killed child ends, unless it sleeps in the kernel.
const MOMENT: Duration = Duration::from_millis(100);

/// Children that were killed and have not ended yet.
static LEFT: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Returns how a child ended, if it ends in this time.
pub(crate) fn end_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let (deadline, mut pause) = (Instant::now() + limit, Duration::from_millis(1));
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Kills a child and does not wait for it. Returns whether it is left behind: it is still there a moment
/// later.
pub fn leave(mut child: Child) -> bool {
    let _ = child.kill();
    let has_ended = end_within(&mut child, MOMENT).is_some();
    if !has_ended {
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    }
    !has_ended
}

/// Tells whether this child was left behind and is still there.
pub(crate) fn is_left(pid: u32) -> bool {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.iter_mut().any(|child| child.id() == pid && !matches!(child.try_wait(), Ok(Some(_))))
}

/// Leaves a child behind that goes on.
#[cfg(test)]
pub(super) fn leave_running(child: Child) {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(child);
}

/// Returns the number of children that were left behind and are still there.
pub fn left_behind() -> usize {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
    left.len()
}
