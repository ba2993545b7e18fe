//! Children that were left behind, and what they were asked about.

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

use super::{Backoff, is_left};

/// First pause after which what did not answer is asked again. A question costs those who wait seconds, each
/// time.
const FIRST: Duration = Duration::from_mins(1);

/// Subjects that did not answer, each with the child that was left behind over it, if it was.
#[derive(Debug)]
pub(crate) struct Returns<K> {
    children: HashMap<K, u32>,
    pauses: Backoff<K>,
}

impl<K> Default for Returns<K> {
    fn default() -> Self {
        Self { children: HashMap::new(), pauses: Backoff::beginning_with(FIRST) }
    }
}

impl<K: Copy + Eq + Hash> Returns<K> {
    /// Notes a subject. There are no more children than may be left behind.
    pub(crate) fn left(&mut self, subject: K, child: Option<u32>, now: Instant) {
        self.children.retain(|_, child| is_left(*child));
        self.children.extend(child.map(|child| (subject, child)));
        self.pauses.put_off(subject, now);
    }

    /// Tells whether the subject is not to be asked yet: its child has not come back, or its pause is not
    /// over.
    pub(crate) fn are_awaited(&self, subject: &K, now: Instant) -> bool {
        self.pauses.is_put_off(subject, now)
            || self.children.get(subject).is_some_and(|child| is_left(*child))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::unresponsive::child::leave_running;

    #[test]
    fn what_a_child_still_waits_for_is_not_asked_whatever_the_time() {
        let mut returns = Returns::<u32>::default();
        let now = Instant::now();
        let child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        leave_running(child);
        returns.left(1, Some(pid), now);
        returns.left(2, None, now);
        let later = now + Duration::from_hours(10);
        assert!(returns.are_awaited(&1, later) && !returns.are_awaited(&2, later));
        assert!(returns.are_awaited(&2, now) && !returns.are_awaited(&3, now));
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        test_support::wait_until("it has come back", Duration::from_secs(30), || {
            !returns.are_awaited(&1, later)
        });
    }
}
