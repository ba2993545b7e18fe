//! Statistics that a recording fills while `top` and the metrics read them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flow::statistics::{Statistics, Tally};

/// The statistics of a recording. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct LiveStatistics(Arc<Mutex<Tally>>);

impl LiveStatistics {
    /// To add to them, or to look at them: nobody else can meanwhile.
    pub fn lock(&self) -> MutexGuard<'_, Tally> {
        // Counters have no state in between that would be wrong to see.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy.
    pub fn read(&self) -> Statistics {
        self.lock().statistics().clone()
    }
}
