//! Durations: added up, counted by size, and their quantiles.

use std::collections::BTreeMap;

use serde::Serialize;

/// A place that durations are added to.
pub trait Durations {
    fn note(&mut self, ns: u64);
}

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

impl Durations for Sum {
    fn note(&mut self, ns: u64) {
        self.count += 1;
        self.ns = self.ns.saturating_add(ns);
    }
}

/// Upper bounds of the buckets, nanoseconds: 1 µs to 30 s, two a decade. Beyond the last there is one bucket
/// more.
pub const BOUNDS: [u64; 16] = [
    1_000,
    3_000,
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
    30_000_000_000,
];

/// Counts of durations by length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BOUNDS.len() + 1],
    /// Sum of all durations.
    pub sum_ns: u64,
}

impl Durations for Histogram {
    fn note(&mut self, ns: u64) {
        let at = BOUNDS.partition_point(|bound| *bound < ns);
        if let Some(bucket) = self.buckets.get_mut(at) {
            *bucket += 1;
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }
}

impl Histogram {
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns each bucket's upper bound in nanoseconds (`None`: there is none), and the number of durations
    /// that fell into it and into no smaller one.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        let bounds = BOUNDS.iter().copied().map(Some).chain([None]);
        bounds.zip(self.buckets.iter().copied())
    }
}

// Quantiles take little memory: a count for each of 32 parts of every power of two. There are several of
// these for each link of each rank, most of them with few different values, so they hold only the parts that
// occur.

/// Bits that distinguish the parts of a power of two.
const PRECISION: u32 = 5;

/// Quantiles of durations in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quantiles {
    parts: BTreeMap<u64, u64>,
    pub count: u64,
    /// Sum of all durations.
    pub total: u64,
    /// Longest duration.
    pub max: u64,
}

impl Durations for Quantiles {
    fn note(&mut self, ns: u64) {
        let shift = ns.checked_ilog2().unwrap_or(0).saturating_sub(PRECISION);
        *self.parts.entry(ns >> shift << shift).or_default() += 1;
        self.count += 1;
        self.total = self.total.saturating_add(ns);
        self.max = self.max.max(ns);
    }
}

impl Quantiles {
    /// Returns the value that `percent` of all do not pass, up to 3 % too small.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        self.parts.iter().find_map(|(value, count)| {
            seen += count;
            (seen >= rank).then_some(*value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket_and_what_is_longer_than_all_has_one() {
        let mut histogram = Histogram::default();
        for ns in [0, 1_000, 1_001, u64::MAX] {
            histogram.note(ns);
        }
        let buckets: Vec<_> = histogram.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(buckets, [(Some(1_000), 2), (Some(3_000), 1), (None, 1)]);
        assert_eq!((histogram.count(), histogram.sum_ns), (4, u64::MAX));
    }

    #[test]
    fn percentiles_are_close_to_the_true_ones() {
        let mut quantiles = Quantiles::default();
        assert_eq!(quantiles.percentile(50), None);
        for value in 0..10_000 {
            quantiles.note(value * 1000);
        }
        for percent in [1, 50, 90, 99, 100] {
            let (found, exact) = (quantiles.percentile(percent).unwrap(), (percent * 100 - 1) * 1000);
            assert!(found <= exact && exact - found <= exact / 32, "{percent}: {found}, {exact}");
        }
        assert_eq!((quantiles.count, quantiles.max), (10_000, 9_999_000));
    }
}
