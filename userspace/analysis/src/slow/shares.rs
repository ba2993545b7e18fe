//! Shares of the time in which a rank's GPU works, and in which it waits for others, by its messages.

use std::collections::{BTreeMap, BTreeSet};

use super::activity::Mean;

/// Length of a slice at first, and most slices of a rank: then two become one.
const SLICE_NS: u64 = 500_000_000;
const MAX_SLICES: usize = 4096;

/// Time of a rank's messages, in slices of the recorded time.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    slice_ns: u64,
    /// Time of its own GPU, and of waits for others, all connections together.
    slices: BTreeMap<u64, (u64, u64)>,
    /// Connections whose times are added: channel, direction and peer. Times of one do not overlap.
    connections: BTreeSet<(u32, bool, i32)>,
}

impl Default for Shares {
    fn default() -> Self {
        Self { slice_ns: SLICE_NS, slices: BTreeMap::new(), connections: BTreeSet::new() }
    }
}

impl Shares {
    pub(crate) fn connection(&mut self, channel: u32, is_send: bool, peer: i32) {
        self.connections.insert((channel, is_send, peer));
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Adds time from `from` to `to`, by the host's clock.
    pub(crate) fn add(&mut self, is_own: bool, from: u64, to: u64) {
        let mut from = from;
        while from < to {
            let slice = from / self.slice_ns;
            let until = to.min((slice + 1).saturating_mul(self.slice_ns));
            let (own, others) = self.slices.entry(slice).or_default();
            let time = if is_own { own } else { others };
            *time = time.saturating_add(until - from);
            from = until;
            if self.slices.len() > MAX_SLICES {
                self.slice_ns = self.slice_ns.saturating_mul(2);
                for (slice, (own, others)) in std::mem::take(&mut self.slices) {
                    let joined = self.slices.entry(slice / 2).or_default();
                    *joined = (joined.0.saturating_add(own), joined.1.saturating_add(others));
                }
            }
        }
    }

    /// Returns the time of its messages, by the host's clock, in whole slices.
    pub(super) fn span_ns(&self) -> Option<(u64, u64)> {
        let (first, last) = (self.slices.keys().next()?, self.slices.keys().next_back()?);
        Some((first * self.slice_ns, (last + 1).saturating_mul(self.slice_ns) - 1))
    }

    /// Counts the slices of half a second in which its own GPU, or waits for others, took more than half of
    /// the time of its connections.
    pub(super) fn most(&self) -> (u64, u64) {
        let half = self.slice_ns.saturating_mul(self.connections.len().max(1) as u64) / 2;
        let (own, others) = self.slices.values().fold((0, 0), |(own, others), times| {
            (own + u64::from(times.0 > half), others + u64::from(times.1 > half))
        });
        let halves = self.slice_ns / SLICE_NS;
        (own * halves, others * halves)
    }

    /// Returns the mean shares, in percent of the time of a connection: of the rank's own GPU, and of waits
    /// for others. `None`: too little was measured.
    /// `span_ns`: the time in which messages of any rank were measured.
    pub(super) fn means(&self, (from_ns, until_ns): (u64, u64)) -> Option<(Mean, Mean)> {
        // The first and the last slice are not whole.
        let whole = (from_ns / self.slice_ns).checked_add(1)?..until_ns / self.slice_ns;
        let connections = self.connections.len().max(1);
        let share = |of: fn(&(u64, u64)) -> u64| {
            #[expect(clippy::cast_precision_loss, reason = "a share, for people")]
            let values: Vec<f64> = whole
                .clone()
                .map(|slice| self.slices.get(&slice).map_or(0, of) as f64)
                .map(|ns| ns * 100.0 / (self.slice_ns as f64 * connections as f64))
                .collect();
            Mean::of(&values)
        };
        Some((share(|times| times.0)?, share(|times| times.1)?))
    }
}
