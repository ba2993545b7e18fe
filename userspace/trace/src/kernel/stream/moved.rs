//! When each process was last seen to move.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Moment at which the latest record of each process was taken. All clones are of the same stream.
#[derive(Clone, Debug, Default)]
pub struct Moved(Arc<Mutex<HashMap<u32, Instant>>>);

impl Moved {
    /// Takes these processes, which moved, unless somebody reads now: nobody is waited for. They are given
    /// again with the next.
    pub(super) fn take(&self, moved: &mut HashSet<u32>, now: Instant) {
        if let Ok(mut known) = self.0.try_lock() {
            known.extend(moved.drain().map(|tgid| (tgid, now)));
        }
    }

    /// Forgets a process that has ended.
    pub(super) fn forget(&self, tgid: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&tgid);
    }

    /// Returns when a process moved last, if it ever did.
    pub fn last(&self, tgid: u32) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&tgid).copied()
    }
}
