//! Facts that other threads find while a recording is written.

use std::{collections::HashSet, fmt};

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
