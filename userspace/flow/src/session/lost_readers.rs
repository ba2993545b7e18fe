//! Children of ncclflow that were lost.

use crate::model::counters::counters;

counters! {
    /// Losses from looking at foreign files and memory.
    pub struct LostReaders {
        /// Children that did not answer in time.
        unanswered: u32;
        /// Children of these that were still there after they were killed: they sleep in the kernel.
        left_behind: u32;
        /// Children that ended, or answered garbage, because of what they read.
        died: u32;
    }
}
