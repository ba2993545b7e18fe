//! Calls of `SaveProxy`, pattern by pattern; graphs and ops for the tests beside these.

use super::{calls, of_grouped};
use crate::decode::{ChannelGraphs, ProxyOp, Ring, Tree};
use nccl_library::nccl::{
    Direction::{Recv, Send},
    Pattern, Protocol,
};

const NOBODY: i32 = -1;

pub(in crate::model::plan) fn graphs() -> ChannelGraphs {
    ChannelGraphs {
        ring: Ring { prev: 1, next: 3, index: 2 },
        tree: Tree { up: 0, down: [3, NOBODY, NOBODY] },
        collnet_chain_up: 4,
        collnet_direct_out: 4,
        nvls_out: NOBODY,
        nvls_tree_up: 0,
        nvls_tree_down: [NOBODY, 3, NOBODY],
        nvls_heads: (1, 0),
        collnet_heads: (1, 0),
        buffer_sizes: vec![524_288, 0, 4_194_304],
        n_nodes: Some(4),
    }
}

pub(in crate::model::plan) fn op(pattern: Pattern, root: i32) -> ProxyOp {
    ProxyOp {
        nsteps: 4,
        chunk_size: 512,
        slice_steps: 1,
        chunk_steps: 1,
        root,
        pattern,
        protocol: Protocol::Simple,
        p2p_nbytes_is_size: true,
        ..ProxyOp::default()
    }
}

/// Compares with the calls of `ncclProxySaveOp` in the official libraries, on rank 2 of 4.
#[test]
fn the_calls_of_each_pattern_are_those_of_nccl() {
    let of = |pattern, root| calls(&op(pattern, root), &graphs(), 2);
    assert_eq!(of(Pattern::RingTwice, 0), [(Recv, 1, 0), (Send, 3, 0)]);
    assert_eq!(of(Pattern::PipelineFrom, 2), [(Send, 3, 0)], "the root receives nothing");
    assert_eq!(of(Pattern::PipelineFrom, 3), [(Recv, 1, 0)], "nobody sends to the root");
    assert_eq!(of(Pattern::PipelineTo, 2), [(Recv, 1, 0)], "the root sends nothing");
    assert_eq!(of(Pattern::PipelineTo, 1), [(Send, 3, 0)], "the root passes nothing on");
    let up = [(Recv, 3, 0), (Recv, NOBODY, 0), (Recv, NOBODY, 0), (Send, 0, 0)];
    let down = [(Send, 3, 0), (Send, NOBODY, 0), (Send, NOBODY, 0), (Recv, 0, 0)];
    assert_eq!(of(Pattern::TreeUp, 0), up);
    assert_eq!(of(Pattern::TreeDown, 0), down);
    assert_eq!(of(Pattern::TreeUpDown, 0), [up, down].concat());
    assert_eq!(of(Pattern::CollnetChain, 0), [(Send, 4, 1), (Recv, 4, 0)]);
    assert_eq!(of(Pattern::Nvls, 0), [(Send, NOBODY, 1), (Recv, NOBODY, 0)]);
    assert_eq!(of(Pattern::Send, 1), [(Send, 1, 1)]);
    assert_eq!(of(Pattern::Recv, 2), [], "from oneself");
    let (receive, send) = ((Recv, 1, 0), (Send, 3, 0));
    assert_eq!(of_grouped(&graphs(), [5, 3]), [(receive, 3), (send, 5)]);
    assert_eq!(of_grouped(&graphs(), [5, 0]), [(send, 5)], "the roots of all");
    assert_eq!(of_grouped(&graphs(), [0, 6]), [(receive, 6)]);
}
