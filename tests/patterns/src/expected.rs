//! The calls of `SaveProxy` that a case must make, by NCCL's source: `ncclProxySaveOp` in src/proxy.cc at the
//! tags v2.16.5-1 to v2.30.7-1. They are taken from that source, and not from ncclflow.

use serde::Serialize;

use crate::cases::Case;
use crate::graph::{CHANNELS, NEAR, NOBODY, RANK, RANKS};
use crate::library::Library;

/// One call of `SaveProxy` with a peer that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Call {
    pub(crate) sends: bool,
    pub(crate) peer: i32,
    pub(crate) conn_index: i32,
    /// `None`: as many as the library counts (PAT).
    pub(crate) nsteps: Option<u32>,
    pub(crate) proxy: bool,
    /// The part of the collective that its messages belong to; `None` for the all-reduce on a
    /// ring, where each has its own.
    pub(crate) stage: Option<&'static str>,
}

/// The calls in NCCL's order. Those without a peer are left out: NCCL does nothing for them.
pub(crate) fn calls(library: &Library, case: &Case) -> Vec<Call> {
    let channel = &CHANNELS[case.channel];
    let (prev, next) = (channel.prev(), channel.next());
    let recv = |peer, index| (false, peer, index);
    let send = |peer, index| (true, peer, index);
    let up = |calls: &mut Vec<(bool, i32, i32)>| {
        calls.extend(channel.tree_down.map(|peer| recv(peer, 0)));
        calls.push(send(channel.tree_up, 0));
    };
    let down = |calls: &mut Vec<(bool, i32, i32)>| {
        calls.extend(channel.tree_down.map(|peer| send(peer, 0)));
        calls.push(recv(channel.tree_up, 0));
    };
    let mut calls = Vec::new();
    match case.pattern {
        "Ring" | "RingTwice" => calls.extend([recv(prev, 0), send(next, 0)]),
        // `NeedProxy`: the first rank of a chain receives nothing, and the last one sends nothing.
        "PipelineFrom" => {
            calls.extend((case.root != RANK).then_some(recv(prev, 0)));
            calls.extend((case.root != next).then_some(send(next, 0)));
        }
        "PipelineTo" => {
            calls.extend((case.root != prev).then_some(recv(prev, 0)));
            calls.extend((case.root != RANK).then_some(send(next, 0)));
        }
        "TreeUp" => up(&mut calls),
        "TreeDown" => down(&mut calls),
        "TreeUpDown" => {
            up(&mut calls);
            down(&mut calls);
        }
        "CollnetChain" => {
            calls.extend([send(channel.collnet_chain_up, 1), recv(channel.collnet_chain_up, 0)]);
        }
        "CollnetDirect" => {
            calls.extend([send(channel.collnet_direct_out, 1), recv(channel.collnet_direct_out, 0)]);
        }
        // 2.17 has the enumerator, and no case for it.
        "Nvls" if library.is_from(18) => {
            calls.extend([send(channel.nvls_out, 1), recv(channel.nvls_out, 0)]);
        }
        "NvlsTree" => {
            let [_, first, second] = channel.nvls_tree_down;
            calls.extend([recv(first, 0), recv(second, 0), send(channel.nvls_tree_up, 0)]);
            calls.extend([send(first, 0), send(second, 0), recv(channel.nvls_tree_up, 0)]);
        }
        "PatUp" | "PatDown" => {
            let around = |distance: i32| (RANK + distance).rem_euclid(RANKS);
            for distance in [1, 2, 4] {
                let to = if case.pattern == "PatUp" { distance } else { -distance };
                calls.extend([send(around(to), 0), recv(around(-to), 0)]);
            }
        }
        "Send" if case.root != RANK => calls.push(send(case.root, 1)),
        "Recv" if case.root != RANK => calls.push(recv(case.root, 1)),
        _ => {}
    }
    let nsteps = |sends: bool| match case.slices {
        Some((sent, received)) => Some(if sends { sent } else { received }),
        None if case.is_pat() => None,
        None => Some(case.nsteps),
    };
    let calls = calls.into_iter().map(|(sends, peer, conn_index)| Call {
        sends,
        peer,
        conn_index,
        nsteps: nsteps(sends),
        proxy: peer != NEAR,
        stage: stage(case, sends == (peer == channel.tree_up)),
    });
    calls.filter(|call| call.peer != NOBODY && (case.slices.is_none() || call.nsteps != Some(0))).collect()
}

/// `to_root`: the call sends to the parent in the tree, or receives from a child.
fn stage(case: &Case, to_root: bool) -> Option<&'static str> {
    Some(match case.pattern {
        "Ring" if case.coll == "ReduceScatter" => "reduce-scatter",
        "Ring" => "allgather",
        "RingTwice" => return None,
        "PipelineFrom" => "pipeline-from",
        "PipelineTo" => "pipeline-to",
        "TreeUp" => "tree-up",
        "TreeUpDown" if to_root => "tree-up",
        "TreeDown" | "TreeUpDown" => "tree-down",
        "CollnetChain" => "collnet-chain",
        "CollnetDirect" => "collnet-direct",
        "Nvls" => "nvls",
        "NvlsTree" => "nvls-tree",
        "PatUp" => "pat-up",
        "PatDown" => "pat-down",
        _ => "p2p",
    })
}
