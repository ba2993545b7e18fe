//! The ops that are passed to `ncclProxySaveOp`: every pattern, and every place in its graph that
//! NCCL treats differently.

use std::fmt;

use crate::graph::{NEAR, RANK};
use crate::library::Library;

/// One op.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// End of an enumerator of `ncclPattern_t`.
    pub(crate) pattern: &'static str,
    /// End of an enumerator of `ncclFunc_t`.
    pub(crate) coll: &'static str,
    /// The function that was called, which can run as another `coll`.
    pub(crate) coll_api: &'static str,
    pub(crate) channel: usize,
    /// Root of a collective, peer of a send or receive.
    pub(crate) root: i32,
    pub(crate) nsteps: u32,
    pub(crate) slice_steps: u32,
    pub(crate) chunk_steps: u32,
    /// Slices of a grouped broadcast that are sent and received.
    pub(crate) slices: Option<(u32, u32)>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} root {} channel {}", self.pattern, self.coll, self.root, self.channel)
    }
}

impl Case {
    pub(crate) fn is_p2p(&self) -> bool {
        matches!(self.pattern, "Send" | "Recv")
    }

    pub(crate) fn is_pat(&self) -> bool {
        matches!(self.pattern, "PatUp" | "PatDown")
    }
}

/// A collective. `nsteps` differs from case to case, so that cases cannot be confused.
fn coll(pattern: &'static str, coll: &'static str, channel: usize, root: i32) -> Case {
    let ring = matches!(pattern, "Ring" | "RingTwice");
    let (slice_steps, chunk_steps) = if ring { (2, 4) } else { (1, 1) };
    Case { pattern, coll, coll_api: coll, channel, root, nsteps: 0, slice_steps, chunk_steps, slices: None }
}

fn p2p(pattern: &'static str, api: &'static str, channel: usize, peer: i32) -> Case {
    Case { coll_api: api, ..coll(pattern, pattern, channel, peer) }
}

/// All cases that the library's version knows.
pub(crate) fn all(library: &Library) -> Vec<Case> {
    let mut cases = vec![
        coll("Ring", "AllGather", 0, 0),
        coll("Ring", "ReduceScatter", 1, 0),
        coll("RingTwice", "AllReduce", 0, 0),
        coll("RingTwice", "AllReduce", 1, 0),
        // The root, the one before it or after it, and any other.
        coll("PipelineFrom", "Broadcast", 0, RANK),
        coll("PipelineFrom", "Broadcast", 0, 6),
        coll("PipelineFrom", "Broadcast", 0, 3),
        coll("PipelineTo", "Reduce", 1, RANK),
        coll("PipelineTo", "Reduce", 1, 1),
        coll("PipelineTo", "Reduce", 1, 4),
        coll("TreeUp", "Reduce", 0, 0),
        coll("TreeDown", "Broadcast", 0, 0),
        coll("TreeUpDown", "AllReduce", 0, 0),
        coll("TreeUpDown", "AllReduce", 1, 0),
        coll("CollnetChain", "AllReduce", 0, 0),
        coll("CollnetChain", "AllReduce", 1, 0),
        coll("CollnetDirect", "AllReduce", 0, 0),
        coll("CollnetDirect", "AllGather", 1, 0),
        coll("Nvls", "AllReduce", 0, 0),
        coll("Nvls", "AllReduce", 1, 0),
        coll("NvlsTree", "AllReduce", 0, 0),
        coll("NvlsTree", "AllReduce", 1, 0),
        coll("PatUp", "ReduceScatter", 0, 0),
        coll("PatDown", "AllGather", 1, 0),
        p2p("Send", "Send", 0, 4),
        p2p("Recv", "Recv", 1, 7),
        p2p("Send", "Send", 1, NEAR),
        p2p("Send", "Send", 0, RANK),
        p2p("Recv", "Recv", 0, RANK),
    ];
    if library.value("ncclFunc_t", "ncclFuncAlltoAll").is_some() {
        cases.push(p2p("Send", "AlltoAll", 0, 1));
        cases.push(p2p("Recv", "AlltoAll", 0, 3));
        cases.push(p2p("Recv", "Gather", 1, 6));
        cases.push(p2p("Send", "Scatter", 1, 0));
    }
    if library.layouts.field("ncclProxyOp", "specifics.bcast.sendSlices").is_some()
        && library.value("ncclFunc_t", "ncclFuncAllGatherV").is_some()
    {
        for (channel, slices) in [(0, (3, 5)), (1, (4, 0)), (1, (0, 6))] {
            let grouped = coll("Ring", "AllGatherV", channel, 0);
            cases.push(Case { slices: Some(slices), slice_steps: 1, chunk_steps: 1, ..grouped });
        }
    }
    cases.retain(|case| library.value("ncclPattern_t", &format!("ncclPattern{}", case.pattern)).is_some());
    for (number, case) in (1..).zip(&mut cases) {
        let messages = if case.pattern == "RingTwice" { 14 * number } else { 7 * number };
        case.nsteps = if case.slices.is_some() { 0 } else { messages * case.chunk_steps };
    }
    cases
}
