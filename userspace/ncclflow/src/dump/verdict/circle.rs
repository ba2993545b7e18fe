//! Ranks that wait for each other because some are in a collective and the others in sends and receives.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    case::named,
    disagreement::{Disagreement, Ranks, collectives, minority},
    steps,
};
use crate::dump::rank_report::RankReport;

/// Where the GPU of a rank is, as far as its ops in flight tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Position {
    Collective(u64),
    PointToPoint,
}

/// Ranks that wait for each other because some are in a collective and others in sends and receives. Only for
/// ranks of which none is the cause by itself.
pub(super) fn circle(ranks: &Ranks<'_>) -> Disagreement {
    let mut sides: BTreeMap<bool, BTreeSet<u32>> = BTreeMap::new();
    let mut positions = BTreeMap::new();
    for (number, rank) in ranks {
        let Some(position) = position(rank) else { continue };
        sides.entry(position == Position::PointToPoint).or_default().insert(*number);
        positions.insert(*number, position);
    }
    let mut found = Disagreement::default();
    if let (Some(collective), Some(p2p)) = (sides.get(&false), sides.get(&true)) {
        let op = collective.iter().find_map(|rank| match positions.get(rank) {
            Some(Position::Collective(count)) => {
                let coll = collectives(ranks.get(rank)?).find(|op| op.op_count == *count)?.coll.clone();
                Some(format!("{}, op {count}", coll.as_deref().unwrap_or("a collective")))
            }
            _ => None,
        });
        found.add(
            minority(&sides),
            format!(
                "the order differs: {} in {}, {} in sends and receives, and neither can proceed before the \
                 other",
                is_or_are(collective),
                op.as_deref().unwrap_or("a collective"),
                is_or_are(p2p)
            ),
        );
    }
    found
}

fn is_or_are(ranks: &BTreeSet<u32>) -> String {
    format!("{} {}", named(ranks), if ranks.len() == 1 { "is" } else { "are" })
}

fn position(rank: &RankReport) -> Option<Position> {
    let unfinished = || rank.proxy.ops.iter().filter(|op| op.done < op.nsteps);
    let collective = unfinished().filter(|op| !op.p2p).map(|op| op.op_count).min();
    let has_p2p = unfinished().any(|op| op.p2p);
    match (collective, has_p2p) {
        (Some(count), false) => Some(Position::Collective(count)),
        (None, true) => Some(Position::PointToPoint),
        (None, false) => None,
        (Some(count), true) => {
            match (steps::in_collective(&rank.proxy.ops, count), steps::in_point_to_point(&rank.proxy.ops)) {
                (true, false) => Some(Position::Collective(count)),
                (false, true) => Some(Position::PointToPoint),
                _ => None,
            }
        }
    }
}
