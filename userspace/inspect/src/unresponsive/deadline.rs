//! Deadlines of those who are asked, by which a late one is told from a stuck one.
//!
//! On a busy host, or under a CPU quota, who is asked may not have run at all. That says nothing of what it
//! asks. So of a thread or child of ours only the time counts in which it slept: neither ran nor waited for a
//! processor.

use std::{
    cell::OnceCell,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use crate::proc_text::{read_text, run_times, stat_field};

/// How many times its limit anybody is waited for, whatever it does.
const MOST: u32 = 10;
/// First wait, and the shortest further one.
const MOMENT: Duration = Duration::from_millis(10);

/// A thread or process of ours, while it owes an answer.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    at: Instant,
    whom: Whom,
    /// Nanoseconds on a processor and of waiting for one until then.
    before: [u64; 2],
}

/// The task that is asked.
#[derive(Clone, Debug)]
pub(crate) enum Whom {
    /// The first thread of a child.
    Child(u32),
    /// A thread of this process; 0 until it has begun.
    Thread(Arc<AtomicU32>),
}

impl Whom {
    /// The thread that calls this.
    pub(crate) fn this_thread() -> Self {
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        Self::Thread(Arc::new(AtomicU32::new(tid)))
    }

    fn folder(&self) -> Option<PathBuf> {
        match self {
            Self::Child(pid) => Some(format!("/proc/{pid}/task/{pid}").into()),
            Self::Thread(tid) => match tid.load(Ordering::Relaxed) {
                0 => None,
                tid => Some(format!("/proc/self/task/{tid}").into()),
            },
        }
    }

    /// Nanoseconds on a processor and of waiting for one, if the kernel counts them.
    fn run_times(&self) -> Option<[u64; 2]> {
        run_times(&read_text(self.folder()?.join("schedstat")).ok()?)
    }

    /// Tells whether it is ready to run, or has not begun.
    fn is_ready(&self) -> bool {
        let Some(folder) = self.folder() else { return true };
        read_text(folder.join("stat")).is_ok_and(|stat| stat_field(&stat, 3) == Some("R"))
    }
}

impl Asked {
    /// Notes that it is asked now.
    pub(crate) fn now(whom: Whom) -> Self {
        let before = whom.run_times().unwrap_or_default();
        Self { at: Instant::now(), whom, before }
    }

    /// One that was asked at this moment, and has slept since.
    #[cfg(test)]
    pub(crate) fn asleep_since(at: Instant) -> Self {
        Self { at, whom: Whom::Child(0), before: [0, 0] }
    }

    /// Returns how long it has slept since: zero while it is ready to run.
    pub(crate) fn asleep(&self) -> Duration {
        let elapsed = self.at.elapsed();
        if self.whom.is_ready() {
            return Duration::ZERO;
        }
        asleep(elapsed, self.before, self.whom.run_times().unwrap_or(self.before))
    }

    /// Returns how long it has slept since, whatever it does now; zero where the kernel does not count that.
    fn slept(&self) -> Duration {
        self.whom.run_times().map_or(Duration::ZERO, |now| asleep(self.at.elapsed(), self.before, now))
    }
}

fn asleep(elapsed: Duration, before: [u64; 2], now: [u64; 2]) -> Duration {
    let [ran, waited] = [0, 1].map(|at| now[at].saturating_sub(before[at]));
    elapsed.saturating_sub(Duration::from_nanos(ran.saturating_add(waited)))
}

/// Time that is given for an answer.
#[derive(Debug)]
pub(crate) struct Deadline {
    begun: Instant,
    limit: Duration,
    whom: Option<Whom>,
    /// Set when no answer has come for a moment: nearly all come before, and need no look at who is asked.
    asked: OnceCell<Asked>,
}

impl Deadline {
    /// The limit counts as it is, whoever is late.
    pub(crate) fn within(limit: Duration) -> Self {
        Self { begun: Instant::now(), limit, whom: None, asked: OnceCell::new() }
    }

    /// The limit is of time in which who was asked sleeps.
    pub(crate) fn asleep(limit: Duration, whom: Whom) -> Self {
        Self { whom: Some(whom), ..Self::within(limit) }
    }

    /// Returns for how long who was asked has slept, but for the first moment.
    pub(crate) fn slept(&self) -> Duration {
        self.asked.get().map_or(Duration::ZERO, Asked::slept)
    }

    /// Returns how long to wait now; zero: the time is over, and nobody who could have run was late.
    pub(crate) fn left(&self) -> Duration {
        let elapsed = self.begun.elapsed();
        let Some(whom) = &self.whom else { return self.limit.saturating_sub(elapsed) };
        if self.asked.get().is_none() && elapsed < MOMENT {
            return MOMENT.saturating_sub(elapsed);
        }
        let asked = self.asked.get_or_init(|| Asked::now(whom.clone()));
        if elapsed < self.limit {
            return self.limit.saturating_sub(elapsed);
        }
        if elapsed > self.limit.saturating_mul(MOST) {
            return Duration::ZERO;
        }
        let slept = asked.asleep();
        if slept < self.limit { self.limit.saturating_sub(slept).max(MOMENT) } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use std::{hint, thread};

    use super::*;

    #[test]
    fn time_on_a_processor_and_time_of_waiting_for_one_is_no_sleep() {
        let ms = Duration::from_millis;
        assert_eq!(asleep(ms(1000), [0, 0], [0, 0]), ms(1000));
        assert_eq!(asleep(ms(1000), [5, 7], [400_000_005, 500_000_007]), ms(100));
        assert_eq!(asleep(ms(1000), [0, 0], [0, u64::MAX]), ms(0));
    }

    #[test]
    fn one_that_works_is_waited_for_and_one_that_sleeps_is_not() {
        let limit = Duration::from_millis(20);
        let tid = Arc::new(AtomicU32::new(0));
        let begin = |work: fn()| {
            let tid = Arc::clone(&tid);
            thread::spawn(move || {
                tid.store(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(), Ordering::Relaxed);
                work();
            })
        };
        let unstarted = Deadline::asleep(limit, Whom::Thread(Arc::default()));
        thread::sleep(limit * 2);
        assert!(unstarted.left() > Duration::ZERO, "it did not even begin");
        let works = begin(|| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(300) {
                hint::spin_loop();
            }
        });
        while tid.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        let deadline = Deadline::asleep(limit, Whom::Thread(Arc::clone(&tid)));
        thread::sleep(limit * 3);
        assert!(deadline.left() > Duration::ZERO || works.is_finished());
        works.join().unwrap();
        tid.store(0, Ordering::Relaxed);
        let _sleeps = begin(|| thread::sleep(Duration::from_secs(60)));
        while tid.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        let deadline = Deadline::asleep(limit, Whom::Thread(Arc::clone(&tid)));
        test_support::wait_until("it has slept for so long", Duration::from_secs(20), || {
            deadline.left() == Duration::ZERO
        });
        assert!(deadline.slept() > Duration::ZERO);
        let wall = Deadline::within(limit);
        thread::sleep(limit);
        assert_eq!((wall.left(), wall.slept()), (Duration::ZERO, Duration::ZERO));
    }
}
