//! Ranks that launched another collective than the others, with another size, or in another order.
//!
//! All ranks of a communicator must launch the same collectives with the same sizes in the same order. Each
//! rank numbers them by itself (`opCount`), so ops in flight with the same number can be compared, on ranks
//! that left equally many without a number. The two
//! ends of a connection count their steps by themselves, so a difference there tells of ops that have ended.
//! Nobody can know which rank is right: the minority is named.

use std::collections::{BTreeMap, BTreeSet};

use super::named;
use crate::{ConnectionReport, OpReport, ProcessState, RankReport};
use flow::text::joined;
use nccl_library::nccl::Direction;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Disagreement {
    /// Ranks that differ from most; all of them, if no side has more.
    pub(super) ranks: BTreeSet<u32>,
    pub(super) evidence: Vec<String>,
}

impl Disagreement {
    pub(super) fn add(&mut self, ranks: impl IntoIterator<Item = u32>, sentence: String) {
        self.ranks.extend(ranks);
        self.evidence.push(sentence);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.evidence.is_empty()
    }
}

pub(super) type Ranks<'a> = BTreeMap<u32, &'a RankReport>;

/// Finds differences in ops in flight and in connections, the surest first; none if there are none.
pub(super) fn find(ranks: &Ranks<'_>) -> Disagreement {
    // Where another communicator counts too, one number can mean different ops.
    if ranks.values().any(|rank| rank.shares_resources) {
        return Disagreement::default();
    }
    let mut found = Disagreement::default();
    for ranks in numbered_alike(ranks) {
        different_collectives(&ranks, &mut found);
        different_sizes(&ranks, &mut found);
        if found.is_empty() {
            different_steps(&ranks, &mut found);
        }
    }
    found
}

/// Returns groups of ranks that have the same numbers for the same ops, as they left equally many without one.
pub(super) fn numbered_alike<'a>(ranks: &Ranks<'a>) -> impl Iterator<Item = Ranks<'a>> + use<'a> {
    let mut groups: BTreeMap<u64, Ranks<'a>> = BTreeMap::new();
    for (number, rank) in ranks {
        groups.entry(rank.counters.unnumbered()).or_default().insert(*number, rank);
    }
    groups.into_values()
}

pub(super) fn collectives(rank: &RankReport) -> impl Iterator<Item = &OpReport> {
    rank.proxy.ops.iter().filter(|op| !op.p2p)
}

/// Returns the ranks that are not on the largest side; all ranks, if no side is the largest.
pub(super) fn minority<K: Ord>(sides: &BTreeMap<K, BTreeSet<u32>>) -> BTreeSet<u32> {
    let largest = sides.values().map(BTreeSet::len).max().unwrap_or(0);
    let is_most = |side: &&BTreeSet<u32>| side.len() == largest;
    let clear = sides.values().filter(is_most).count() == 1;
    sides.values().filter(|side| !clear || side.len() < largest).flatten().copied().collect()
}

/// Groups the ranks' collectives by a key and by what must be the same under one key, and finds the lowest
/// key under which it is not.
fn first_difference<'a, K: Ord, S: Ord>(
    ranks: &Ranks<'a>,
    key_and_side: impl Fn(&'a OpReport) -> Option<(K, S)>,
) -> Option<(K, BTreeMap<S, BTreeSet<u32>>)> {
    let mut by_key: BTreeMap<K, BTreeMap<S, BTreeSet<u32>>> = BTreeMap::new();
    for (number, rank) in ranks {
        for (key, side) in collectives(rank).filter_map(&key_and_side) {
            by_key.entry(key).or_default().entry(side).or_default().insert(*number);
        }
    }
    by_key.into_iter().find(|(_, sides)| sides.len() > 1)
}

/// Finds different collectives under one number. Only the lowest number counts: those that follow are
/// shifted.
fn different_collectives(ranks: &Ranks<'_>, found: &mut Disagreement) {
    fn number_and_name(op: &OpReport) -> Option<(u64, &str)> {
        Some((op.op_count, op.coll.as_deref()?))
    }
    if let Some((count, sides)) = first_difference(ranks, number_and_name) {
        let text = sides.iter().map(|(coll, ranks)| format!("{coll} on {}", named(ranks)));
        found.add(minority(&sides), format!("the order differs: op {count} is {}", joined(text, ", ")));
    }
}

/// Finds different numbers of steps under one number, in patterns in which all ranks have the same.
fn different_sizes(ranks: &Ranks<'_>, found: &mut Disagreement) {
    const EVEN: [&str; 7] =
        ["RING", "RING_TWICE", "PIPELINE_FROM", "PIPELINE_TO", "TREE_UP", "TREE_DOWN", "TREE_UP_DOWN"];
    type Op<'a> = (u64, u32, &'a str, &'a str);
    fn op_and_steps(op: &OpReport) -> Option<(Op<'_>, u64)> {
        let (coll, pattern) = (op.coll.as_deref()?, op.pattern.as_deref()?);
        // Broadcasts of different sizes in a group are one ring with parts of their own.
        let is_even = coll != "AllGatherV" && EVEN.contains(&pattern);
        is_even.then_some(((op.op_count, op.channel, coll, pattern), op.nsteps))
    }
    if let Some(((count, channel, coll, _), sides)) = first_difference(ranks, op_and_steps) {
        let text = sides.iter().map(|(steps, ranks)| format!("{steps} steps on {}", named(ranks)));
        let text = joined(text, ", ");
        let sentence = format!("the sizes differ: {coll}, op {count}, has on channel {channel} {text}");
        found.add(minority(&sides), sentence);
    }
}

/// Finds connections whose two ends began different numbers of steps, though they are at the same op.
fn different_steps(ranks: &Ranks<'_>, found: &mut Disagreement) {
    let mut ends: BTreeMap<(u32, u32), String> = BTreeMap::new();
    let mut times: BTreeMap<u32, u32> = BTreeMap::new();
    for (number, rank) in ranks {
        for send in rank.connections.iter().filter(|connection| connection.direction == Direction::Send) {
            let Some(peer) = ranks.get(&send.peer) else { continue };
            let receive = peer.connection(send.channel, Direction::Recv, *number);
            let Some(receive) = receive.filter(|receive| receive.steps != send.steps) else { continue };
            if !are_at_the_same_op(rank, send, peer, receive) {
                continue;
            }
            ends.entry((*number, send.peer)).or_insert_with(|| {
                *times.entry(*number).or_default() += 1;
                *times.entry(send.peer).or_default() += 1;
                format!(
                    "rank {number} has begun {} steps to rank {}, which has begun {} from it (channel {}), \
                     at the same op",
                    send.steps, send.peer, receive.steps, send.channel
                )
            });
        }
    }
    let most = times.values().max().copied().unwrap_or(0);
    if most == 0 {
        return;
    }
    let ranks: Vec<u32> = times.iter().filter(|(_, count)| **count == most).map(|(rank, _)| *rank).collect();
    let sentence = format!(
        "sizes or order of earlier collectives differ on {}; inferred from the steps counted",
        named(&ranks)
    );
    found.add(ranks, sentence);
    found.evidence.extend(ends.into_values().take(4));
}

/// Tells whether both ends of a connection have begun the same ops, as far as their numbers tell.
fn are_at_the_same_op(
    rank: &RankReport,
    send: &ConnectionReport,
    peer: &RankReport,
    receive: &ConnectionReport,
) -> bool {
    let runs = |rank: &RankReport| rank.process_state == ProcessState::Running && rank.failure().is_none();
    if !runs(rank) || !runs(peer) {
        return false;
    }
    let ours = |rank: &RankReport, end: &ConnectionReport| -> Vec<(u64, bool)> {
        let is_its = |op: &&OpReport| {
            (op.channel, op.direction, op.peer) == (end.channel, end.direction, Some(end.peer))
        };
        collectives(rank).filter(is_its).map(|op| (op.op_count, op.begun)).collect()
    };
    let (sending, receiving) = (ours(rank, send), ours(peer, receive));
    let begun = |ops: &[(u64, bool)]| ops.iter().filter(|(_, begun)| *begun).map(|(count, _)| *count).max();
    let last = [begun(&sending), begun(&receiving)];
    if let [Some(ours), Some(theirs)] = last {
        return ours == theirs;
    }
    // A rank with an older one in flight has not begun this one: its proxy gets to it later.
    let newest = last.into_iter().flatten().max();
    let is_behind = |rank: &RankReport| {
        collectives(rank).any(|op| op.is_unfinished() && newest.is_some_and(|newest| op.op_count < newest))
    };
    if is_behind(rank) || is_behind(peer) {
        return false;
    }
    // One end or both are through with all ops, the other one is in the last.
    let launched = rank.counters.launched();
    [sending, receiving].iter().zip(last).all(|(ops, begun)| ops.len() == usize::from(begun.is_some()))
        && launched.is_some()
        && launched == peer.counters.launched()
}
