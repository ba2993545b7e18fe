//! Facts that other threads find while a recording is written.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use flow::{
    decode::RecordView,
    recording::{Binding, Event},
};

/// Facts of one kind, numbered in the order in which they were found.
pub trait Facts<T>: fmt::Debug + Send {
    /// Returns the facts from the number `first` on, and the number of the next one.
    fn since(&self, first: u64) -> (Vec<T>, u64);

    /// Waits, for a limited time, until what was asked for is found.
    fn settle(&self) {}
}

/// Facts about processes and communicators. Records tell of communicators to look at.
pub trait WhoFacts: Facts<(u64, Event)> {
    /// Notes a record.
    fn note(&mut self, binding: &Binding, record: &RecordView<'_>);

    /// Keeps the process numbers of which anything is known.
    fn retain_known(&self, pids: &mut HashSet<u32>);
}

/// The latest facts of one kind. Whoever writes them takes them in time; the oldest beyond a number are
/// dropped.
#[derive(Debug)]
pub struct LatestFacts<T> {
    /// Number of the first of `facts`.
    first: u64,
    facts: VecDeque<T>,
    most: usize,
}

impl<T: Clone> LatestFacts<T> {
    pub fn new(most: usize) -> Self {
        Self { first: 0, facts: VecDeque::new(), most }
    }

    pub fn push(&mut self, fact: T) {
        self.facts.push_back(fact);
        if self.facts.len() > self.most {
            self.facts.pop_front();
            self.first += 1;
        }
    }

    /// Returns the last `count`, or as many as there are.
    pub fn last(&self, count: usize) -> Vec<T> {
        self.facts.iter().skip(self.facts.len().saturating_sub(count)).cloned().collect()
    }

    /// As [`Facts::since`].
    pub fn since(&self, first: u64) -> (Vec<T>, u64) {
        let passed = usize::try_from(first.saturating_sub(self.first)).unwrap_or(usize::MAX);
        (self.facts.iter().skip(passed).cloned().collect(), self.first + self.facts.len() as u64)
    }
}

/// Rows that others find, and the number of the first one that is not written.
#[derive(Debug)]
pub(super) struct TimedRows<T>(Box<dyn Facts<Arc<T>>>, pub(super) u64);

impl<T: Clone> TimedRows<T> {
    /// Takes the rows from now on.
    pub(super) fn new(rows: impl Facts<Arc<T>> + 'static) -> Self {
        let (_, next) = rows.since(u64::MAX);
        Self(Box::new(rows), next)
    }

    /// Returns the rows that are not written, if there are some over at least this time, and the number of
    /// the one after them.
    pub(super) fn unwritten(&self, at_least: Duration, ts_ns: fn(&T) -> u64) -> Option<(Vec<T>, u64)> {
        let (rows, next) = self.0.since(self.1);
        let time_ns = ts_ns(rows.last()?).saturating_sub(ts_ns(rows.first()?));
        let is_long = u128::from(time_ns) >= at_least.as_nanos();
        is_long.then(|| (rows.iter().map(|row| T::clone(row)).collect(), next))
    }
}
