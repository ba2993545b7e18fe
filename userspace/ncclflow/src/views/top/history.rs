//! Rates of ranks at earlier refreshes, for the lines over time.

use std::collections::{HashMap, VecDeque};

use flow::statistics::RankKey;

use super::rates::Rates;

/// Refreshes that are kept: four minutes at one each two seconds.
const MAX_POINTS: usize = 120;

/// Most ranks whose history is kept: some 8 MB.
const MAX_RANKS: usize = 4096;

/// Rates of a refresh.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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

    /// Returns several ranks' history, put together by `join`. A rank that came later has zeros before.
    pub(super) fn of(&self, keys: &[RankKey], join: fn(f64, f64) -> f64) -> Vec<Point> {
        let mut all = vec![Point::default(); self.points];
        for points in keys.iter().filter_map(|key| self.ranks.get(key)) {
            for (sum, point) in all.iter_mut().rev().zip(points.iter().rev()) {
                sum.ops_per_s = join(sum.ops_per_s, point.ops_per_s);
                sum.bytes_per_s = join(sum.bytes_per_s, point.bytes_per_s);
            }
        }
        all
    }
}
