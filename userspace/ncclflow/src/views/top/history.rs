//! Rates of ranks at earlier refreshes, for the lines over time.

use std::collections::{HashMap, VecDeque};

use flow::statistics::RankKey;

use super::rates::{RankRates, Rates};

/// Refreshes that are kept: four minutes at one each two seconds. Statistics keep 512 ranks: some 4 MB in all.
const MAX_POINTS: usize = 120;

/// Rates of a refresh.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) ops_per_s: f64,
    pub(super) bytes_per_s: f64,
}

/// Points of each refresh by rank, the latest refresh last.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<HashMap<RankKey, Point>>);

impl History {
    pub(super) fn note(&mut self, rates: &Rates) {
        let point = |rank: &RankRates| {
            Some((rank.key?, Point { ops_per_s: rank.ops_per_s, bytes_per_s: rank.bytes_per_s }))
        };
        self.0.push_back(rates.ranks.iter().filter_map(point).collect());
        if self.0.len() > MAX_POINTS {
            self.0.pop_front();
        }
    }

    /// Returns the history of a value of several ranks, put together by `join`. A rank that came later has zeros
    /// before.
    pub(super) fn of(
        &self,
        keys: &[RankKey],
        value: fn(&Point) -> f64,
        join: fn(f64, f64) -> f64,
    ) -> Vec<f64> {
        let joined = |ranks: &HashMap<RankKey, Point>| {
            keys.iter().filter_map(|key| ranks.get(key)).map(value).fold(0.0, join)
        };
        self.0.iter().map(joined).collect()
    }
}
