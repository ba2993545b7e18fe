//! Quantiles of durations, in little memory: a count for each of 32 parts of every power of two.
//!
//! There are several of these for each link of each rank, most of them with few different values, so they
//! hold only the parts that occur.

use std::collections::BTreeMap;

use super::link_sums::Durations;

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
    use super::{Durations as _, Quantiles};

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
