//! Durations, counted by size.

use super::link_sums::Durations;

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
    sum_ns: u64,
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

    /// Returns the sum of all durations, nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Returns each bucket's upper bound in nanoseconds (`None`: there is none), and the number of durations
    /// that fell into it and into no smaller one.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        let bounds = BOUNDS.iter().copied().map(Some).chain([None]);
        bounds.zip(self.buckets.iter().copied())
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
        assert_eq!((histogram.count(), histogram.sum_ns()), (4, u64::MAX));
    }
}
