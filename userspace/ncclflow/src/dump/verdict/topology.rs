//! The ranks that a rank is connected with on one channel, and which of them feed an op or take its data.

use std::collections::BTreeSet;

use super::{pipelines::ChannelOp, steps::produced};
use crate::dump::rank_report::{ChannelReport, ConnectionReport, OpReport};
use nccl_library::nccl::Direction;

/// The ranks that a rank is connected with on one channel.
#[derive(Clone, Copy)]
pub(super) struct Topology<'a> {
    pub(super) channel: Option<&'a ChannelReport>,
    /// Connections whose data pass through the proxy.
    pub(super) connections: &'a [ConnectionReport],
    pub(super) dropped_receives: &'a BTreeSet<ChannelOp>,
}

impl Topology<'_> {
    /// The peers of which the GPU needs data for `send`, by its pattern; none where that cannot be told.
    pub(super) fn sources(&self, send: &OpReport) -> Vec<u32> {
        let (Some(channel), Some(to)) = (self.channel, send.peer) else { return Vec::new() };
        let up = u32::try_from(channel.tree_up).ok();
        let sources = match send.pattern.as_deref() {
            Some("RING" | "RING_TWICE") => vec![channel.ring_prev],
            _ if self.dropped_receives.contains(&(send.channel, send.op_count)) => vec![channel.ring_prev],
            Some("TREE_UP_DOWN") if up == Some(to) || up.is_none() => channel.tree_down.clone(),
            Some("TREE_UP_DOWN") => vec![channel.tree_up],
            _ => Vec::new(),
        };
        sources.into_iter().filter_map(|rank| u32::try_from(rank).ok()).collect()
    }

    /// The peers to which the GPU sends on what `receive` brings; none where that cannot be told.
    pub(super) fn sinks(&self, receive: &OpReport) -> Vec<u32> {
        let (Some(channel), Some(from)) = (self.channel, receive.peer) else { return Vec::new() };
        let up = u32::try_from(channel.tree_up).ok();
        let sinks = match receive.pattern.as_deref() {
            Some("RING" | "RING_TWICE") => vec![channel.ring_next],
            Some("TREE_UP_DOWN") if up == Some(from) || up.is_none() => channel.tree_down.clone(),
            Some("TREE_UP_DOWN") => vec![channel.tree_up],
            _ => Vec::new(),
        };
        sinks.into_iter().filter_map(|rank| u32::try_from(rank).ok()).collect()
    }

    pub(super) fn over_network(&self, op: &OpReport, direction: Direction, peer: u32) -> bool {
        self.connections.iter().any(|connection| {
            (connection.channel, connection.direction, connection.peer) == (op.channel, direction, peer)
        })
    }
}

/// Whether the GPU needs what `receive` brings to fill the slots of `send`.
pub(super) fn is_input(send: &OpReport, receive: &OpReport, topology: Option<&ChannelReport>) -> bool {
    if produced(send) >= send.nsteps {
        return false;
    }
    let pattern = send.pattern.as_deref().unwrap_or_default();
    let (Some(topology), Some(to), Some(from)) = (topology, send.peer, receive.peer) else {
        return !send.p2p;
    };
    let is = |rank: i32, peer: u32| u32::try_from(rank) == Ok(peer);
    match pattern {
        "SEND" | "RECV" => false,
        "TREE_UP" | "TREE_DOWN" | "TREE_UP_DOWN" => {
            if is(topology.tree_up, to) || topology.tree_up < 0 {
                topology.tree_down.iter().any(|down| is(*down, from))
            } else {
                is(topology.tree_up, from)
            }
        }
        _ => true,
    }
}
