//! Ranks that wait for each other because some are in a collective and the others in sends and receives.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    case::named,
    disagreement::{Disagreement, Ranks, minority},
    steps,
};
use crate::rank_report::{OpReport, RankReport};

/// Operation in which the GPU of a rank is, as far as its ops in flight tell.
enum Position<'a> {
    Collective(&'a OpReport),
    PointToPoint,
}

/// Finds ranks that wait for each other because some are in a collective and others in sends and receives.
/// Only for ranks of which none is the cause by itself.
pub(super) fn circle(ranks: &Ranks<'_>) -> Disagreement {
    let mut sides: BTreeMap<bool, BTreeSet<u32>> = BTreeMap::new();
    let mut first = None;
    for (number, rank) in ranks {
        let is_p2p = match position(rank) {
            Some(Position::Collective(op)) => {
                first.get_or_insert(op);
                false
            }
            Some(Position::PointToPoint) => true,
            None => continue,
        };
        sides.entry(is_p2p).or_default().insert(*number);
    }
    let mut found = Disagreement::default();
    if let (Some(collective), Some(p2p), Some(op)) = (sides.get(&false), sides.get(&true), first) {
        found.add(
            minority(&sides),
            format!(
                "the order differs: {} in {}, op {}, {} in sends and receives, and neither can proceed before \
                 the other",
                is_or_are(collective),
                op.coll.as_deref().unwrap_or("a collective"),
                op.op_count,
                is_or_are(p2p)
            ),
        );
    }
    found
}

fn is_or_are(ranks: &BTreeSet<u32>) -> String {
    format!("{} {}", named(ranks), if ranks.len() == 1 { "is" } else { "are" })
}

fn position(rank: &RankReport) -> Option<Position<'_>> {
    let ops = &rank.proxy.ops;
    let unfinished = || ops.iter().filter(|op| op.is_unfinished());
    let collective = unfinished().filter(|op| !op.p2p).min_by_key(|op| op.op_count);
    let has_p2p = unfinished().any(|op| op.p2p);
    // With both in flight, the rank is in the one that its GPU has begun.
    let is_in_p2p = has_p2p && (collective.is_none() || steps::in_point_to_point(ops));
    let collective = collective.filter(|op| !has_p2p || steps::in_collective(ops, op.op_count));
    match (collective, is_in_p2p) {
        (Some(op), false) => Some(Position::Collective(op)),
        (None, true) => Some(Position::PointToPoint),
        _ => None,
    }
}
