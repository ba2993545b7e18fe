//! Ranks of a large communicator that do the same: they are one row.

use std::collections::{BTreeMap, BTreeSet};

use super::rates::{KindRates, RankRates};

/// Ranks of a communicator up to which each is a row of its own: as many as fit 24 lines, with what is below.
const FEW: usize = 16;
/// Largest difference from the median that counts as none, as a part of it.
const SAME: f64 = 0.1;
/// The same in ops of an interval: ranks do not run in step with the refreshes.
const SAME_OPS: f64 = 2.0;
/// Seconds without a record after which a rank counts as silent.
pub(super) const SILENT_S: f64 = 5.0;

/// What ranks do: whether they are silent, and the kinds of op that run.
type Doing = (bool, BTreeSet<String>);

/// Parts the ranks of a communicator, given as indexes, into those that do the same: the same kinds of op, at
/// rates like the median's. A rank that is waited for is alone. `interval_s` is what the rates are over.
pub(super) fn parts(ranks: &[RankRates], interval_s: f64, members: Vec<usize>) -> Vec<Vec<usize>> {
    if members.len() <= FEW {
        return members.into_iter().map(|at| vec![at]).collect();
    }
    let mut alike: BTreeMap<Doing, Vec<(usize, &RankRates)>> = BTreeMap::new();
    let mut parts = Vec::new();
    for at in members {
        let Some(rank) = ranks.get(at) else { continue };
        if rank.lag.is_some() {
            parts.push(vec![at]);
            continue;
        }
        let kinds = rank.kinds.iter().filter(|kind| kind.ops_per_s > 0.0).map(KindRates::label).collect();
        alike.entry((rank.idle_s > SILENT_S, kinds)).or_default().push((at, rank));
    }
    for group in alike.into_values() {
        let middle =
            |value: fn(&RankRates) -> f64| median(group.iter().map(|(_, rank)| value(rank)).collect());
        let (ops, size) = (middle(|rank| rank.ops_per_s), middle(size));
        let slack = (ops * SAME).max(SAME_OPS / interval_s.max(0.1));
        let is_like = |rank: &RankRates| {
            (rank.ops_per_s - ops).abs() <= slack && (self::size(rank) - size).abs() <= size * SAME
        };
        let (same, others): (Vec<_>, Vec<_>) = group.into_iter().partition(|(_, rank)| is_like(rank));
        parts.extend(others.into_iter().map(|(at, _)| vec![at]));
        parts.extend((!same.is_empty()).then(|| same.into_iter().map(|(at, _)| at).collect()));
    }
    parts
}

/// Returns the mean size of a rank's ops.
fn size(rank: &RankRates) -> f64 {
    if rank.ops_per_s > 0.0 { rank.bytes_per_s / rank.ops_per_s } else { 0.0 }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
