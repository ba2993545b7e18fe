//! The stacks that were named, for whoever writes them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::recording::StackFacts;

/// Stacks that are kept. A job has some hundreds; of one that makes more, the oldest are not repeated in later segments
/// and windows.
const MAX_STACKS: usize = 16_384;

/// How long the end of a recording or window waits for stacks that are being named.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);
/// The same where symbol tables are read for them: frameworks have libraries of some hundred megabytes.
const NATIVE_LIMIT: Duration = Duration::from_secs(10);

/// Stacks by the order in which they were named.
#[derive(Clone, Debug, Default)]
pub(crate) struct StackBook {
    stacks: Arc<Mutex<Stacks>>,
    /// Stacks that wait to be named.
    pub(crate) waiting: Arc<AtomicUsize>,
    has_native: bool,
}

#[derive(Debug, Default)]
struct Stacks {
    next: u64,
    facts: BTreeMap<u64, Arc<StackFacts>>,
}

impl StackBook {
    /// Of stacks with native frames.
    pub(crate) fn of_native() -> Self {
        Self { has_native: true, ..Self::default() }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Stacks) -> T) -> T {
        work(&mut self.stacks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn push(&self, facts: StackFacts) {
        self.with(|stacks| {
            stacks.facts.insert(stacks.next, Arc::new(facts));
            stacks.next += 1;
            if stacks.facts.len() > MAX_STACKS {
                stacks.facts.pop_first();
            }
        });
    }

    /// What was named from the number `first` on, and the number that is next.
    pub(crate) fn since(&self, first: u64) -> (Vec<Arc<StackFacts>>, u64) {
        self.with(|stacks| {
            (stacks.facts.range(first..).map(|(_, facts)| Arc::clone(facts)).collect(), stacks.next)
        })
    }

    /// Waits until what has come is named, for a limited time.
    pub(crate) fn settle(&self) {
        let limit = if self.has_native { NATIVE_LIMIT } else { SETTLE_LIMIT };
        let deadline = Instant::now() + limit;
        while self.waiting.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
