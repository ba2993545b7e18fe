//! Parts of a collective.

use serde::{Deserialize, Serialize};

/// The part of a collective that a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// A ring whose function is not known.
    Ring,
    ReduceScatter,
    Allgather,
    PipelineFrom,
    PipelineTo,
    TreeUp,
    TreeDown,
    CollnetChain,
    CollnetDirect,
    Nvls,
    NvlsTree,
    PatUp,
    PatDown,
    P2p,
}
