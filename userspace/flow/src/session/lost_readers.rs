//! Children of ncclflow that were lost.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Losses from looking at foreign files and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LostReaders {
    /// Children that did not answer in time.
    pub unanswered: u32,
    /// Children of these that were still there after they were killed: they sleep in the kernel.
    pub left_behind: u32,
    /// Children that ended, or answered garbage, because of what they read.
    pub died: u32,
}

impl LostReaders {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl AddAssign for LostReaders {
    fn add_assign(&mut self, more: Self) {
        self.unanswered = self.unanswered.saturating_add(more.unanswered);
        self.left_behind = self.left_behind.saturating_add(more.left_behind);
        self.died = self.died.saturating_add(more.died);
    }
}
