//! Ranks that a rank is connected with on one channel, and which of them feed an op or take its data.

use std::collections::BTreeSet;

use super::{pipelines::ChannelOp, steps::produced};
use crate::{ChannelReport, OpReport, RankReport};
use nccl_library::nccl::Direction;

/// Ranks that a rank is connected with on one channel.
#[derive(Clone, Copy)]
pub(super) struct Topology<'a> {
    pub(super) rank: &'a RankReport,
    pub(super) channel: Option<&'a ChannelReport>,
    pub(super) dropped_receives: &'a BTreeSet<ChannelOp>,
}

impl Topology<'_> {
    /// Returns the peers whose data the GPU needs for a send, or to which it sends on the data of a receive,
    /// by the op's pattern; none where that cannot be told.
    pub(super) fn beyond(&self, op: &OpReport) -> Vec<u32> {
        let (Some(channel), Some(peer)) = (self.channel, op.peer) else { return Vec::new() };
        let up = u32::try_from(channel.tree_up).ok();
        let (in_ring, is_dropped) = match op.direction {
            Direction::Send => {
                (channel.ring_prev, self.dropped_receives.contains(&(op.channel, op.op_count)))
            }
            Direction::Recv => (channel.ring_next, false),
        };
        let beyond = match op.pattern.as_deref() {
            Some("RING" | "RING_TWICE") => vec![in_ring],
            _ if is_dropped => vec![in_ring],
            Some("TREE_UP_DOWN") if up == Some(peer) || up.is_none() => channel.tree_down.clone(),
            Some("TREE_UP_DOWN") => vec![channel.tree_up],
            _ => Vec::new(),
        };
        beyond.into_iter().filter_map(|rank| u32::try_from(rank).ok()).collect()
    }

    pub(super) fn over_network(&self, op: &OpReport, direction: Direction, peer: u32) -> bool {
        self.rank.connection(op.channel, direction, peer).is_some()
    }
}

/// Tells whether the GPU needs the data of `receive` to fill the slots of `send`.
pub(super) fn is_input(send: &OpReport, receive: &OpReport, topology: Option<&ChannelReport>) -> bool {
    if produced(send) >= send.nsteps {
        return false;
    }
    let (Some(topology), Some(to), Some(from)) = (topology, send.peer, receive.peer) else {
        return !send.p2p;
    };
    let is = |rank: i32, peer: u32| u32::try_from(rank) == Ok(peer);
    match send.pattern.as_deref() {
        Some("SEND" | "RECV") => false,
        Some("TREE_UP" | "TREE_DOWN" | "TREE_UP_DOWN") => {
            if is(topology.tree_up, to) || topology.tree_up < 0 {
                topology.tree_down.iter().any(|down| is(*down, from))
            } else {
                is(topology.tree_up, from)
            }
        }
        _ => true,
    }
}
