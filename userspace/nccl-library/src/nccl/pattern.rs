super::named::named! {
    /// Pattern of a proxy op: `ncclPattern_t`. The variants are called as the enumerators are.
    #[derive(Default)]
    Pattern {
        #[default]
        Ring = "RING",
        RingTwice = "RING_TWICE",
        PipelineFrom = "PIPELINE_FROM",
        PipelineTo = "PIPELINE_TO",
        TreeUp = "TREE_UP",
        TreeDown = "TREE_DOWN",
        TreeUpDown = "TREE_UP_DOWN",
        CollnetChain = "COLLNET_CHAIN",
        CollnetDirect = "COLLNET_DIRECT",
        Nvls = "NVLS",
        NvlsTree = "NVLS_TREE",
        PatUp = "PAT_UP",
        PatDown = "PAT_DOWN",
        Send = "SEND",
        Recv = "RECV",
        /// Kernel-event bookkeeping of a profiler plugin (2.26 to 2.30): no data flows.
        Profiler = "PROFILER",
        /// None of NCCL's: a kernel on symmetric memory (2.27 and later), without proxy ops.
        Symmetric = "SYMMETRIC",
        /// None of NCCL's: copies by copy engines (2.28 and later), without proxy ops.
        CopyEngine = "COPY_ENGINE",
        /// None of NCCL's: broadcasts of a group, planned together (2.29 and later), without proxy ops.
        Grouped = "GROUPED",
        /// None of NCCL's: a one-sided call (2.29 and later), without proxy ops.
        OneSided = "ONE_SIDED",
    }
}

impl Pattern {
    /// Returns the pattern with an enumerator's name in `ncclPattern_t`.
    pub fn from_enumerator(name: &str) -> Option<Self> {
        let name = name.strip_prefix("ncclPattern")?;
        Self::ALL.iter().find(|pattern| format!("{pattern:?}") == name).copied()
    }

    /// Tells whether the pattern is point to point, not a collective.
    pub fn is_p2p(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }

    /// Tells whether the pattern is that of a launch without proxy ops, which has no channels and no
    /// messages.
    pub fn has_no_ops(self) -> bool {
        matches!(self, Self::Symmetric | Self::CopyEngine | Self::Grouped | Self::OneSided)
    }

    /// Tells whether NCCL does not count such ops: sends, receives, and launches without proxy ops. Each rank
    /// has numbers of its own for them.
    pub fn is_numbered_apart(self) -> bool {
        self.is_p2p() || self.has_no_ops()
    }

    /// Tells whether the pattern is an all-gather or reduce-scatter by PAT, whose peers each get a number of
    /// messages of their own.
    pub fn is_pat(self) -> bool {
        matches!(self, Self::PatUp | Self::PatDown)
    }
}
