//! Stacks that were named, for those who write them.

use recording::format::Facts;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use flow::schema::StackRow;

/// Maximum number of stacks that are kept. A job has some hundreds; if one has more, the oldest are not
/// repeated in later segments and windows.
const MAX_STACKS: usize = 16_384;

/// Time that the end of a recording or window waits for stacks that are being named.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);
/// Time that it waits where symbol tables are read for them: frameworks have libraries of some hundred
/// megabytes.
const NATIVE_LIMIT: Duration = Duration::from_secs(10);

/// Stacks in the order in which they were named.
#[derive(Clone, Debug, Default)]
pub(crate) struct StackBook {
    stacks: Arc<Mutex<Stacks>>,
    /// Number of stacks that wait to be named.
    pub waiting: Arc<AtomicUsize>,
    has_native: bool,
}

#[derive(Debug, Default)]
struct Stacks {
    next: u64,
    facts: BTreeMap<u64, Arc<StackRow>>,
}

impl StackBook {
    /// Makes a book of stacks with native frames.
    pub(crate) fn of_native() -> Self {
        Self { has_native: true, ..Self::default() }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Stacks) -> T) -> T {
        work(&mut self.stacks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn push(&self, facts: StackRow) {
        self.with(|stacks| {
            stacks.facts.insert(stacks.next, Arc::new(facts));
            stacks.next += 1;
            if stacks.facts.len() > MAX_STACKS {
                stacks.facts.pop_first();
            }
        });
    }
}

impl Facts<Arc<StackRow>> for StackBook {
    fn since(&self, first: u64) -> (Vec<Arc<StackRow>>, u64) {
        self.with(|stacks| {
            (stacks.facts.range(first..).map(|(_, facts)| Arc::clone(facts)).collect(), stacks.next)
        })
    }

    fn settle(&self) {
        let limit = if self.has_native { NATIVE_LIMIT } else { SETTLE_LIMIT };
        let deadline = Instant::now() + limit;
        while self.waiting.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
