//! Rates of ranks at earlier refreshes, for the lines over time.

use std::collections::{HashMap, VecDeque};

use flow::statistics::RankKey;

use super::rates::Rates;

/// Refreshes that are kept: four minutes at one each two seconds.
const MAX_POINTS: usize = 120;

/// Most ranks whose history is kept: some 8 MB.
const MAX_RANKS: usize = 4096;

/// Rates of a refresh.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) ops_per_s: f64,
    pub(super) bytes_per_s: f64,
}

/// Points by rank, the latest refresh last.
#[derive(Debug, Default)]
pub(super) struct History {
    ranks: HashMap<RankKey, VecDeque<Point>>,
    /// Number of refreshes that are kept.
    points: usize,
}

impl History {
    pub(super) fn note(&mut self, rates: &Rates) {
        self.points = (self.points + 1).min(MAX_POINTS);
        for rank in &rates.ranks {
            let Some(key) = rank.key else { continue };
            if self.ranks.len() >= MAX_RANKS && !self.ranks.contains_key(&key) {
                continue;
            }
            let points = self.ranks.entry(key).or_default();
            points.push_back(Point { ops_per_s: rank.ops_per_s, bytes_per_s: rank.bytes_per_s });
            if points.len() > MAX_POINTS {
                points.pop_front();
            }
        }
        // Ranks that are gone are in no rates any more.
        let is_there = |key: &RankKey| rates.ranks.iter().any(|rank| rank.key == Some(*key));
        if self.ranks.len() > rates.ranks.len() {
            self.ranks.retain(|key, _| is_there(key));
        }
    }

    /// Returns the history of a value of several ranks, put together by `join`. A rank that came later has zeros
    /// before.
    pub(super) fn of(
        &self,
        keys: impl IntoIterator<Item = RankKey>,
        value: fn(&Point) -> f64,
        join: fn(f64, f64) -> f64,
    ) -> Vec<f64> {
        let mut all = vec![0.0; self.points];
        for points in keys.into_iter().filter_map(|key| self.ranks.get(&key)) {
            for (sum, point) in all.iter_mut().rev().zip(points.iter().rev()) {
                *sum = join(*sum, value(point));
            }
        }
        all
    }
}
