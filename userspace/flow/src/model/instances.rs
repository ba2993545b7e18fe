//! Which communicator of one hash and rank it is.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Counts by hash and rank.
type Counts = HashMap<(Option<u64>, i32), u32>;

/// How many communicators of one hash and rank there were: two splits of one parent with one colour have the same hash from 2.18 to
/// 2.23, and before 2.18 there are no hashes. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Instances(Arc<Mutex<Counts>>);

impl Instances {
    /// The number of a communicator that was not seen before.
    pub(super) fn next(&self, hash: Option<u64>, rank: i32) -> u32 {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry((hash, rank)).or_insert(0);
        *count += 1;
        *count - 1
    }
}
