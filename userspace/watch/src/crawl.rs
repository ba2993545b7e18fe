//! Judges a job that moves, and does much less than it did: an iteration takes many times as long. Counters do not
//! tell whether a rank is late or all do something else, as when they evaluate: dumps do. Pure.

use std::{collections::BTreeSet, time::Duration};

use dump::State;

use crate::look::Look;

/// First and longest pause between two dumps.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_mins(15);
/// Time within which a dump comes back.
const LOOK_TAKES: Duration = Duration::from_secs(90);

/// Dumps of a job that crawls.
#[derive(Debug, Default)]
pub(crate) struct Crawl {
    asked: Option<Duration>,
    next: Duration,
    pause: Duration,
    named: Option<Named>,
}

/// Communicator and ranks that the last dump named.
#[derive(Debug)]
struct Named {
    root: Option<(String, u32)>,
    ranks: BTreeSet<u32>,
}

impl Crawl {
    /// Tells whether a dump is wanted now.
    pub(crate) fn wants_look(&mut self, crawls: bool, now: Duration) -> bool {
        if !crawls {
            (self.next, self.pause, self.named) = (Duration::ZERO, Duration::ZERO, None);
            return false;
        }
        let is_asked = self.asked.is_some_and(|asked| now.saturating_sub(asked) <= LOOK_TAKES);
        if is_asked || now < self.next {
            return false;
        }
        self.asked = Some(now);
        true
    }

    /// Takes a dump. Tells whether two name a rank that has not come, and that is not in a phase that takes long.
    pub(crate) fn confirms(&mut self, look: &Result<Look, String>, now: Duration) -> bool {
        if self.asked.take().is_none() {
            return false;
        }
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.next = now + self.pause;
        let is_stuck = |look: &&Look| look.state == State::Stuck && look.phase().is_none();
        let Some(look) = look.as_ref().ok().filter(is_stuck) else { return false };
        let ranks: BTreeSet<u32> = look.culprits.iter().map(|culprit| culprit.rank).collect();
        let is_same = |named: &Named| named.root == look.root && !named.ranks.is_disjoint(&ranks);
        let confirms = self.named.as_ref().is_some_and(is_same);
        self.named = Some(Named { root: look.root.clone(), ranks });
        (self.pause, self.next) = (Duration::ZERO, now + FIRST_PAUSE);
        confirms
    }
}
