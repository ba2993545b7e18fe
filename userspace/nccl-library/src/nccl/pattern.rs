//! Communication patterns of a proxy op.

use serde::{Deserialize, Serialize};

/// `ncclPattern_t`, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Pattern {
    #[default]
    Ring,
    RingTwice,
    PipelineFrom,
    PipelineTo,
    TreeUp,
    TreeDown,
    TreeUpDown,
    CollnetChain,
    CollnetDirect,
    Nvls,
    NvlsTree,
    PatUp,
    PatDown,
    Send,
    Recv,
    /// Kernel-event bookkeeping of a profiler plugin (2.26 to 2.30): no data flows.
    Profiler,
}

impl Pattern {
    /// From the enumerator's name in `ncclPattern_t`.
    pub fn from_enumerator(name: &str) -> Option<Self> {
        Some(match name.strip_prefix("ncclPattern")? {
            "Ring" => Self::Ring,
            "RingTwice" => Self::RingTwice,
            "PipelineFrom" => Self::PipelineFrom,
            "PipelineTo" => Self::PipelineTo,
            "TreeUp" => Self::TreeUp,
            "TreeDown" => Self::TreeDown,
            "TreeUpDown" => Self::TreeUpDown,
            "CollnetChain" => Self::CollnetChain,
            "CollnetDirect" => Self::CollnetDirect,
            "Nvls" => Self::Nvls,
            "NvlsTree" => Self::NvlsTree,
            "PatUp" => Self::PatUp,
            "PatDown" => Self::PatDown,
            "Send" => Self::Send,
            "Recv" => Self::Recv,
            "Profiler" => Self::Profiler,
            _ => return None,
        })
    }

    /// As the output names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "RING",
            Self::RingTwice => "RING_TWICE",
            Self::PipelineFrom => "PIPELINE_FROM",
            Self::PipelineTo => "PIPELINE_TO",
            Self::TreeUp => "TREE_UP",
            Self::TreeDown => "TREE_DOWN",
            Self::TreeUpDown => "TREE_UP_DOWN",
            Self::CollnetChain => "COLLNET_CHAIN",
            Self::CollnetDirect => "COLLNET_DIRECT",
            Self::Nvls => "NVLS",
            Self::NvlsTree => "NVLS_TREE",
            Self::PatUp => "PAT_UP",
            Self::PatDown => "PAT_DOWN",
            Self::Send => "SEND",
            Self::Recv => "RECV",
            Self::Profiler => "PROFILER",
        }
    }

    /// Point to point, not a collective.
    pub fn is_p2p(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }

    /// An all-gather or reduce-scatter by PAT, whose peers each get a number of messages of their own.
    pub fn is_pat(self) -> bool {
        matches!(self, Self::PatUp | Self::PatDown)
    }
}
