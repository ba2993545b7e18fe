//! Whom an op goes to and comes from: the calls of `SaveProxy` that `ncclProxySaveOp` makes for its pattern (src/proxy.cc; the
//! same in 2.18 to 2.30, and in the binaries of 2.31 and 2.32).

use crate::{
    decode::{ChannelGraphs, Direction, ProxyOp},
    nccl::Pattern,
};

/// One call: direction, peer, index of the connector.
pub(super) type Call = (Direction, i32, i32);

/// The calls in NCCL's order. Those of PAT are for every distance that is a power of two; NCCL leaves out those that its
/// algorithm takes no step to, and counts steps by running it.
pub(super) fn calls(op: &ProxyOp, graphs: &ChannelGraphs, rank: i32, n_ranks: i32) -> Vec<Call> {
    use Direction::{Recv, Send};
    let ring = &graphs.ring;
    let up = (Send, graphs.tree.up, 0);
    match op.pattern {
        Pattern::Ring | Pattern::RingTwice => vec![(Recv, ring.prev, 0), (Send, ring.next, 0)],
        // The root receives nothing, and nobody sends to it.
        Pattern::PipelineFrom => {
            unless(&[(rank, (Recv, ring.prev, 0)), (ring.next, (Send, ring.next, 0))], op.root)
        }
        // The root sends nothing, and nobody receives from it.
        Pattern::PipelineTo => {
            unless(&[(ring.prev, (Recv, ring.prev, 0)), (rank, (Send, ring.next, 0))], op.root)
        }
        Pattern::TreeUp => {
            let mut calls: Vec<Call> = graphs.tree.down.map(|down| (Recv, down, 0)).to_vec();
            calls.push(up);
            calls
        }
        Pattern::TreeDown => {
            let mut calls: Vec<Call> = graphs.tree.down.map(|down| (Send, down, 0)).to_vec();
            calls.push((Recv, graphs.tree.up, 0));
            calls
        }
        Pattern::TreeUpDown => {
            let mut calls: Vec<Call> = graphs.tree.down.map(|down| (Recv, down, 0)).to_vec();
            calls.push(up);
            calls.extend(graphs.tree.down.map(|down| (Send, down, 0)));
            calls.push((Recv, graphs.tree.up, 0));
            calls
        }
        Pattern::CollnetChain => through(graphs.collnet_chain_up),
        Pattern::CollnetDirect => through(graphs.collnet_direct_out),
        Pattern::Nvls => through(graphs.nvls_out),
        Pattern::NvlsTree => {
            let [_, first, second] = graphs.nvls_tree_down;
            vec![
                (Recv, first, 0),
                (Recv, second, 0),
                (Send, graphs.nvls_tree_up, 0),
                (Send, first, 0),
                (Send, second, 0),
                (Recv, graphs.nvls_tree_up, 0),
            ]
        }
        Pattern::Send => if_other(Send, op.root, rank),
        Pattern::Recv => if_other(Recv, op.root, rank),
        Pattern::PatUp => powers_of_two(n_ranks)
            .flat_map(|distance| {
                [(Send, around(rank, distance, n_ranks), 0), (Recv, around(rank, -distance, n_ranks), 0)]
            })
            .collect(),
        Pattern::PatDown => powers_of_two(n_ranks)
            .flat_map(|distance| {
                [(Send, around(rank, -distance, n_ranks), 0), (Recv, around(rank, distance, n_ranks), 0)]
            })
            .collect(),
        Pattern::Profiler => Vec::new(),
    }
}

/// Whether an op's steps are the same for each of its peers, and so those that the op says.
pub(super) fn steps_are_the_ops(op: &ProxyOp) -> bool {
    !matches!(op.pattern, Pattern::PatUp | Pattern::PatDown)
}

fn powers_of_two(below: i32) -> impl Iterator<Item = i32> {
    (0..i32::BITS - 1).map(|bit| 1 << bit).take_while(move |distance| *distance < below)
}

fn around(rank: i32, distance: i32, n_ranks: i32) -> i32 {
    rank.wrapping_add(distance).rem_euclid(n_ranks.max(1))
}

/// The calls whose rank is not the root.
fn unless(calls: &[(i32, Call)], root: i32) -> Vec<Call> {
    calls.iter().filter(|(rank, _)| *rank != root).map(|(_, call)| *call).collect()
}

/// Into the network's own reduction and out of it.
fn through(peer: i32) -> Vec<Call> {
    vec![(Direction::Send, peer, 1), (Direction::Recv, peer, 0)]
}

fn if_other(direction: Direction, peer: i32, rank: i32) -> Vec<Call> {
    if peer == rank { Vec::new() } else { vec![(direction, peer, 1)] }
}
