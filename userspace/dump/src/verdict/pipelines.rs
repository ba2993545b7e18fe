//! Finds the rank that begins a pipeline (Broadcast, Reduce), as far as the ops in flight on all ranks show
//! it.
//!
//! A rank of a ring always has a receive that feeds its send. In a pipeline one rank has none, and its own
//! ops do not tell that rank from one whose receive NCCL has dropped, as it does from 2.26 on when its
//! network failed (src/proxy.cc, progressOps). The other ranks' ops can: the last rank of a pipeline receives
//! and sends nothing, and the first one follows it in the ring.

use std::collections::{BTreeMap, BTreeSet};

use super::disagreement::numbered_alike;
use crate::{OpReport, RankReport};
use nccl_library::nccl::Direction;

pub(super) type ChannelOp = (u32, u64);

/// Returns for each rank the pipelines in which it sends, does not receive, and is not the first.
pub(super) fn dropped_receives(ranks: &BTreeMap<u32, &RankReport>) -> BTreeMap<u32, BTreeSet<ChannelOp>> {
    let mut dropped: BTreeMap<u32, BTreeSet<ChannelOp>> = BTreeMap::new();
    // Where another communicator counts too, one number can mean different ops.
    if ranks.values().any(|rank| rank.shares_resources) {
        return dropped;
    }
    for ranks in numbered_alike(ranks) {
        for (number, rank) in &ranks {
            for send in of(rank, Direction::Send) {
                if !has(rank, send, Direction::Recv) && must_receive(&ranks, rank, send) {
                    dropped.entry(*number).or_default().insert((send.channel, send.op_count));
                }
            }
        }
    }
    dropped
}

/// Tells whether the rank before is known to send to this one in that op, or another one is known to be the
/// first.
fn must_receive(ranks: &BTreeMap<u32, &RankReport>, rank: &RankReport, send: &OpReport) -> bool {
    let previous = ring(rank, send.channel).and_then(|(previous, _)| ranks.get(&previous));
    previous.is_some_and(|previous| has(previous, send, Direction::Send))
        || first(ranks, send).is_some_and(|first| first != rank.rank)
}

/// Returns the first rank of a pipeline: the one after that which receives and does not send. A receive
/// cannot be over before the send that it feeds, so that a receive without a send feeds none.
fn first(ranks: &BTreeMap<u32, &RankReport>, like: &OpReport) -> Option<u32> {
    let mut found = ranks.values().filter_map(|rank| {
        let is_last = has(rank, like, Direction::Recv) && !has(rank, like, Direction::Send);
        let (_, next) = ring(rank, like.channel)?;
        let connection = rank.connection(like.channel, Direction::Send, next);
        (is_last && connection.is_some()).then_some(next)
    });
    let first = found.next()?;
    let is_alone = found.next().is_none();
    let receives = ranks.get(&first).is_some_and(|rank| has(rank, like, Direction::Recv));
    (is_alone && !receives).then_some(first)
}

fn of(rank: &RankReport, direction: Direction) -> impl Iterator<Item = &OpReport> {
    let is_pipeline = |op: &&OpReport| matches!(op.pattern.as_deref(), Some("PIPELINE_FROM" | "PIPELINE_TO"));
    let unfinished = rank.proxy.ops.iter().filter(|op| !op.p2p && op.is_unfinished());
    unfinished.filter(move |op| op.direction == direction).filter(is_pipeline)
}

fn has(rank: &RankReport, like: &OpReport, direction: Direction) -> bool {
    of(rank, direction).any(|op| {
        (op.channel, op.op_count, &op.coll, &op.pattern)
            == (like.channel, like.op_count, &like.coll, &like.pattern)
    })
}

fn ring(rank: &RankReport, channel: u32) -> Option<(u32, u32)> {
    let channel = rank.channel(channel)?;
    Some((u32::try_from(channel.ring_prev).ok()?, u32::try_from(channel.ring_next).ok()?))
}
