//! Sums of durations.

use serde::Serialize;

/// Sum of durations, and their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    pub count: u64,
    pub ns: u64,
}

impl Sum {
    /// Returns the sum of the durations that have come since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { count: self.count.saturating_sub(before.count), ns: self.ns.saturating_sub(before.ns) }
    }
}
