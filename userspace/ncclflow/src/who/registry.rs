//! What was found out while a recording goes on: written by those who find out, read by those who write.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use super::{communicator::Seen, known::Known};
use crate::recording::Event;

/// Entries that are kept, and communicators that are remembered. A node that has had more of them since the
/// recording began loses the oldest entries.
pub(super) const MAX_ENTRIES: usize = 65_536;

/// Processes and communicators by the order in which they became known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    events: BTreeMap<u64, Event>,
    seen: HashSet<Seen>,
}

impl Registry {
    fn with<T>(&self, work: impl FnOnce(&mut Entries) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds what became known.
    pub(super) fn push(&self, event: Event) {
        self.with(|entries| {
            entries.events.insert(entries.next, event);
            entries.next += 1;
            if entries.events.len() > MAX_ENTRIES {
                entries.events.pop_first();
            }
        });
    }

    /// Whether the communicator was not seen before, and is to be looked at.
    pub(super) fn is_new(&self, seen: Seen) -> bool {
        self.with(|entries| {
            if entries.seen.len() >= MAX_ENTRIES {
                // To look at one again does no harm.
                entries.seen.clear();
            }
            entries.seen.insert(seen)
        })
    }

    /// What became known from the number `first` on, and the number that is next.
    pub(crate) fn since(&self, first: u64) -> (Vec<(u64, Event)>, u64) {
        self.with(|entries| {
            // Most of the time there is nothing.
            let new = entries.events.range(first..).map(|(number, event)| (*number, event.clone()));
            (new.collect(), entries.next)
        })
    }

    /// All of it.
    pub(super) fn known(&self) -> Known {
        let mut known = Known::default();
        self.with(|entries| entries.events.values().for_each(|event| known.note(event)));
        known
    }
}
