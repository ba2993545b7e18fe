//! Parts of a collective.

use super::named::named;

named! {
    /// Part of a collective that a message belongs to.
    Stage {
        /// Ring of a function that is not known.
        Ring = "ring",
        ReduceScatter = "reduce-scatter",
        Allgather = "allgather",
        PipelineFrom = "pipeline-from",
        PipelineTo = "pipeline-to",
        TreeUp = "tree-up",
        TreeDown = "tree-down",
        CollnetChain = "collnet-chain",
        CollnetDirect = "collnet-direct",
        Nvls = "nvls",
        NvlsTree = "nvls-tree",
        PatUp = "pat-up",
        PatDown = "pat-down",
        P2p = "p2p",
    }
}
