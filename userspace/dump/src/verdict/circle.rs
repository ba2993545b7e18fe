//! Ranks that wait for each other because some are in a collective and the others in sends and receives.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    BE,
    disagreement::{Disagreement, Ranks, minority},
    steps, subject,
};
use crate::{OpReport, RankReport};

/// Finds ranks that wait for each other because some are in a collective and others in sends and receives.
/// Only for ranks of which none is the cause by itself.
pub(super) fn circle(ranks: &Ranks<'_>) -> Disagreement {
    let mut sides: BTreeMap<bool, BTreeSet<u32>> = BTreeMap::new();
    let mut first = None;
    for (number, rank) in ranks {
        let Some(op) = position(rank) else { continue };
        if !op.p2p {
            first.get_or_insert(op);
        }
        sides.entry(op.p2p).or_default().insert(*number);
    }
    let mut found = Disagreement::default();
    if let (Some(collective), Some(p2p), Some(op)) = (sides.get(&false), sides.get(&true), first) {
        found.add(
            minority(&sides),
            format!(
                "the order differs: {} in {}, op {}, {} in sends and receives, and neither can proceed before \
                 the other",
                subject(collective, BE),
                op.coll.as_deref().unwrap_or("a collective"),
                op.op_count,
                subject(p2p, BE)
            ),
        );
    }
    found
}

/// Returns an op in which the GPU of a rank is, as far as its ops in flight tell: of a collective, or of
/// sends and receives.
fn position(rank: &RankReport) -> Option<&OpReport> {
    let ops = &rank.proxy.ops;
    let unfinished = || ops.iter().filter(|op| op.is_unfinished());
    let collective = unfinished().filter(|op| !op.p2p).min_by_key(|op| op.op_count);
    let p2p = unfinished().find(|op| op.p2p);
    let (Some(one), Some(batch)) = (collective, p2p) else { return collective.or(p2p) };
    // With both in flight, the rank is in the one that its GPU has begun.
    match (steps::in_collective(ops, one.op_count), steps::in_point_to_point(ops)) {
        (true, false) => Some(one),
        (false, true) => Some(batch),
        _ => None,
    }
}
