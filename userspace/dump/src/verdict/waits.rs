//! Ranks that one rank waits for, by its oldest ops in flight on each channel.

use std::collections::{BTreeMap, BTreeSet};

use super::{op_waits::of_ops, pipelines::ChannelOp, steps::gpu_has_begun, topology::Topology};
use crate::{OpReport, RankReport};
use nccl_library::nccl::Direction;

/// Waits of one rank, as far as its ops in flight tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    /// Ranks that it waits for, and why: one phrase for each, without a subject.
    pub(super) peers: BTreeMap<u32, String>,
    /// Reason why the rank makes no progress by itself, if it does not.
    pub(super) own: Option<String>,
    /// [`Self::own`] is about an op that the GPU has not begun, while other ops of the rank wait for peers:
    /// its kernel may be queued behind theirs.
    pub(super) own_may_be_queued: bool,
    pub(super) unknown_peer: bool,
    /// Ranks of [`Self::peers`] with which an op should be in flight that is not, and the direction of that
    /// op.
    pub(super) broken: BTreeMap<u32, Direction>,
}

/// Returns the waits of a rank. `dropped_receives` are pipelines of which the rank has lost the receive.
pub(super) fn of_rank(rank: &RankReport, dropped_receives: &BTreeSet<ChannelOp>) -> Waits {
    let mut all = Waits { own_may_be_queued: true, ..Waits::default() };
    for (channel, ops) in oldest(&rank.proxy.ops) {
        let topology = Topology { rank, channel: rank.channel(channel), dropped_receives };
        let mut waits = Waits::default();
        of_ops(&ops, topology, &mut waits);
        if let Some(own) = waits.own {
            let begun = ops.iter().any(|op| gpu_has_begun(op));
            if all.own.is_none() || (begun && all.own_may_be_queued) {
                all.own = Some(own);
                all.own_may_be_queued = !begun;
            }
        }
        for (peer, why) in waits.peers {
            all.peers.entry(peer).or_insert(why);
        }
        all.unknown_peer |= waits.unknown_peer;
        all.broken.extend(waits.broken);
    }
    all.own_may_be_queued &= all.own.is_some() && !all.peers.is_empty();
    all
}

/// Returns the oldest collective, by channel, and on each channel the oldest point-to-point batch.
/// Collectives are numbered in the order in which the rank's kernels run: a later one that stands still says
/// nothing. Batches are numbered by channel.
pub(super) fn oldest(ops: &[OpReport]) -> Vec<(u32, Vec<&OpReport>)> {
    let unfinished = || ops.iter().filter(|op| op.is_unfinished());
    let first_collective = unfinished().filter(|op| !op.p2p).map(|op| op.op_count).min();
    let mut first_batch: BTreeMap<u32, u64> = BTreeMap::new();
    for op in unfinished().filter(|op| op.p2p) {
        let first = first_batch.entry(op.channel).or_insert(op.op_count);
        *first = op.op_count.min(*first);
    }
    let mut oldest: BTreeMap<(bool, u32), Vec<&OpReport>> = BTreeMap::new();
    for op in unfinished() {
        let first = if op.p2p { first_batch.get(&op.channel).copied() } else { first_collective };
        if first == Some(op.op_count) {
            oldest.entry((op.p2p, op.channel)).or_default().push(op);
        }
    }
    oldest.into_iter().map(|((_, channel), ops)| (channel, ops)).collect()
}

impl Waits {
    pub(super) fn on(&mut self, peer: Option<u32>, why: String) {
        match peer {
            Some(peer) => {
                self.peers.entry(peer).or_insert(why);
            }
            None => self.unknown_peer = true,
        }
    }
}
