//! Facts that become known while a recording goes on: some threads find them, others write them.

use flow::{
    identity::{Job, Largest},
    recording::{Event, Known, MAX_KNOWN},
    session::{FilesState, SessionReport},
};
use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use inspect::identity::Seen;

/// Most processes that have ended and are still known: their last records, and windows that are being
/// completed, ask for them.
const MAX_ENDED: usize = 1000;

/// Longest time that the end of a recording or window waits for looks that go on. A look takes some
/// microseconds.
const SETTLE_LIMIT: Duration = Duration::from_millis(200);

/// Processes and communicators by the order in which they became known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    events: BTreeMap<u64, Event>,
    seen: HashSet<Seen>,
    /// Number of communicators that are still to be looked at.
    waiting: usize,
    /// Processes that have ended, with the number of the next entry at that time: later entries are of
    /// another process.
    ended: VecDeque<(u32, u64)>,
}

impl Registry {
    fn with<T>(&self, work: impl FnOnce(&mut Entries) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a fact.
    pub(super) fn push(&self, event: Event) {
        self.with(|entries| {
            entries.events.insert(entries.next, event);
            entries.next += 1;
            if entries.events.len() > MAX_KNOWN {
                entries.events.pop_first();
            }
        });
    }

    /// Notes that a process has ended. The oldest of the ended ones are forgotten.
    pub(super) fn ended(&self, pid: u32) {
        self.with(|entries| {
            entries.ended.push_back((pid, entries.next));
            while entries.ended.len() > MAX_ENDED
                && let Some((pid, before)) = entries.ended.pop_front()
            {
                entries.events.retain(|number, event| *number >= before || pid_of(event) != Some(pid));
                entries.seen.retain(|seen| seen.tgid != pid);
            }
        });
    }

    /// Keeps the process numbers of which anything is known.
    pub(super) fn retain_known(&self, pids: &mut HashSet<u32>) {
        let known: HashSet<u32> = self.with(|entries| entries.events.values().filter_map(pid_of).collect());
        pids.retain(|pid| known.contains(pid));
    }

    /// Notes a communicator. Returns whether it was not seen before, and is to be looked at.
    pub(super) fn is_new(&self, seen: Seen) -> bool {
        self.with(|entries| {
            if entries.seen.len() >= MAX_KNOWN {
                // Looking at a communicator again does no harm.
                entries.seen.clear();
            }
            let is_new = entries.seen.insert(seen);
            entries.waiting += usize::from(is_new);
            is_new
        })
    }

    /// Notes that a communicator was looked at, or cannot be.
    pub(super) fn looked(&self) {
        self.with(|entries| entries.waiting = entries.waiting.saturating_sub(1));
    }

    /// Returns the facts from the number `first` on, and the number of the next one.
    pub(super) fn since(&self, first: u64) -> (Vec<(u64, Event)>, u64) {
        self.with(|entries| {
            // Most of the time there are no new facts.
            let new = entries.events.range(first..).map(|(number, event)| (*number, event.clone()));
            (new.collect(), entries.next)
        })
    }

    /// Returns all facts.
    pub(super) fn known(&self) -> Known {
        let mut known = Known::default();
        self.with(|entries| entries.events.values().for_each(|event| known.note(event)));
        known
    }

    /// Completes a report that has its communicators already.
    pub(crate) fn complete(&self, report: &mut SessionReport) {
        let deadline = Instant::now() + SETTLE_LIMIT;
        while self.with(|entries| entries.waiting) > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let known = self.known();
        if report.window.is_none() && report.files.is_some_and(|files| files.state != FilesState::Complete) {
            known.add_missing(&mut report.communicators);
        }
        let jobs = known.complete(&mut report.communicators);
        for target in report.targets.iter_mut() {
            let latest = known.process(target.pid);
            target.job = match &target.whose {
                // Another process has this one's number by now, and the communicators are of that one.
                Some(whose) if latest.is_some_and(|latest| latest.started_ticks != target.started_ticks) => {
                    Some(Job::of(whose, Largest::default()))
                }
                _ => jobs.get(&target.pid).cloned(),
            };
        }
    }
}

/// Returns the process that an event is about.
fn pid_of(event: &Event) -> Option<u32> {
    match event {
        Event::Process(facts) => Some(facts.pid),
        Event::Communicator(facts) => Some(facts.pid),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::identity::ProcessFacts;

    fn process(pid: u32, name: &str) -> Event {
        Event::Process(Box::new(ProcessFacts { pid, name: name.to_owned(), ..ProcessFacts::default() }))
    }

    #[test]
    fn as_much_is_known_after_a_hundred_thousand_processes_as_after_a_thousand() {
        let registry = Registry::default();
        registry.push(process(1, "goes on"));
        for number in 0..100_000 {
            // Process numbers are used again.
            let pid = 10 + number % 30_000;
            registry.push(process(pid, "short"));
            registry.ended(pid);
        }
        let (events, _) = registry.since(0);
        assert!(events.len() <= MAX_ENDED + 2, "{} entries", events.len());
        let known = registry.known();
        assert_eq!(known.process(1).map(|facts| facts.name.as_str()), Some("goes on"));
        assert!(known.process(10 + 99_999 % 30_000).is_some(), "the latest are known");
    }

    #[test]
    fn a_process_that_has_the_number_of_one_that_is_forgotten_is_known() {
        let registry = Registry::default();
        registry.push(process(5, "first"));
        registry.ended(5);
        registry.push(process(5, "second"));
        for pid in 100..100 + u32::try_from(MAX_ENDED).unwrap() {
            registry.ended(pid);
        }
        let (events, _) = registry.since(0);
        assert_eq!(events.len(), 1);
        assert_eq!(registry.known().process(5).map(|facts| facts.name.clone()), Some("second".to_owned()));
    }
}
