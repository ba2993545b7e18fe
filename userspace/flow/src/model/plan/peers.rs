//! Peers of an op: the calls of `SaveProxy` that `ncclProxySaveOp` makes for its pattern (src/proxy.cc; the
//! same in 2.18 to 2.30, and in the binaries of 2.31 and 2.32). Those of PAT are in [`super::pat`].

use crate::decode::{ChannelGraphs, ProxyOp};
use nccl_library::nccl::{Direction, Pattern};

/// A call of `SaveProxy`: direction, peer, index of the connector.
pub(super) type Call = (Direction, i32, i32);

/// Returns the calls in NCCL's order, all with the op's own number of steps.
pub(super) fn calls(op: &ProxyOp, graphs: &ChannelGraphs, rank: i32) -> Vec<Call> {
    use Direction::{Recv, Send};
    let (ring, tree) = (&graphs.ring, &graphs.tree);
    let (from, to) = ((Recv, ring.prev, 0), (Send, ring.next, 0));
    match op.pattern {
        Pattern::Ring | Pattern::RingTwice => vec![from, to],
        // The root receives nothing, and nobody sends to it.
        Pattern::PipelineFrom => unless(&[(rank, from), (ring.next, to)], op.root),
        // The root sends nothing, and nobody receives from it.
        Pattern::PipelineTo => unless(&[(ring.prev, from), (rank, to)], op.root),
        Pattern::TreeUp => up(&tree.down, tree.up),
        Pattern::TreeDown => down(&tree.down, tree.up),
        Pattern::TreeUpDown => [up(&tree.down, tree.up), down(&tree.down, tree.up)].concat(),
        Pattern::CollnetChain => through(graphs.collnet_chain_up),
        Pattern::CollnetDirect => through(graphs.collnet_direct_out),
        Pattern::Nvls => through(graphs.nvls_out),
        Pattern::NvlsTree => {
            let [_, children @ ..] = &graphs.nvls_tree_down;
            [up(children, graphs.nvls_tree_up), down(children, graphs.nvls_tree_up)].concat()
        }
        // A copy to oneself has no peer.
        Pattern::Send => unless(&[(rank, (Send, op.root, 1))], op.root),
        Pattern::Recv => unless(&[(rank, (Recv, op.root, 1))], op.root),
        Pattern::PatUp
        | Pattern::PatDown
        | Pattern::Profiler
        | Pattern::Symmetric
        | Pattern::CopyEngine
        | Pattern::Grouped
        | Pattern::OneSided => Vec::new(),
    }
}

/// Returns the calls whose rank is not the root.
fn unless(calls: &[(i32, Call)], root: i32) -> Vec<Call> {
    calls.iter().filter(|(rank, _)| *rank != root).map(|(_, call)| *call).collect()
}

/// Returns the calls of a tree towards its root.
fn up(children: &[i32], parent: i32) -> Vec<Call> {
    let receives = children.iter().map(|child| (Direction::Recv, *child, 0));
    receives.chain([(Direction::Send, parent, 0)]).collect()
}

/// Returns the calls of a tree away from its root.
fn down(children: &[i32], parent: i32) -> Vec<Call> {
    let sends = children.iter().map(|child| (Direction::Send, *child, 0));
    sends.chain([(Direction::Recv, parent, 0)]).collect()
}

/// Returns the calls into the network's own reduction and out of it.
fn through(peer: i32) -> Vec<Call> {
    vec![(Direction::Send, peer, 1), (Direction::Recv, peer, 0)]
}

/// Returns the calls for grouped broadcasts, each with its steps. There is no call for 0 steps.
pub(super) fn of_grouped(graphs: &ChannelGraphs, [sent, received]: [u64; 2]) -> Vec<(Call, u64)> {
    let both =
        [((Direction::Recv, graphs.ring.prev, 0), received), ((Direction::Send, graphs.ring.next, 0), sent)];
    both.into_iter().filter(|(_, nsteps)| *nsteps != 0).collect()
}

#[cfg(test)]
pub(super) mod tests;
