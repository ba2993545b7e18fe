//! Counts of what could not be put together, or was left out. Part of every output.

/// Declares counters: those of another process, or of another window, are added with `+=`.
macro_rules! counters {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident {
            $($(#[doc = $about_field:literal])+ $field:ident: $type:ty;)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[doc = $about_field])+ pub $field: $type,)+
        }

        impl $name {
            fn saturating_add(self, other: Self) -> Self {
                Self { $($field: self.$field.saturating_add(other.$field),)+ }
            }
        }

        impl std::ops::AddAssign<&Self> for $name {
            fn add_assign(&mut self, other: &Self) {
                *self = self.saturating_add(*other);
            }
        }
    };
}
pub(crate) use counters;

counters! {
    /// Counts of what the model could not put together.
    pub struct ModelCounters {
        /// Peers whose op was not seen.
        orphan_peers: u64;
        /// Ops that were seen being posted and not being planned: the tracer came in between, or records were
        /// lost.
        unplanned_posts: u64;
        /// Ops that need a proxy and were not seen being posted before the session ended.
        unposted: u64;
        /// Steps of messages whose op was not seen being posted.
        unjoined_steps: u64;
        /// Messages among them that the proxy executed for another process (PXN): it is not recorded, or
        /// posted them before the session.
        foreign_messages: u64;
        /// Ops that the proxy of another process executes, where that process is not known: it is not
        /// recorded.
        proxy_not_known: u64;
        /// Ops of which a message had another size than was planned: should be 0.
        measured_otherwise: u64;
        /// Ops, messages and steps that `--steps-every`, `--channels` and `--min-bytes` left out.
        left_out: LeftOut;
        /// Ops some of whose messages were not seen to their end.
        unfinished: u64;
        /// Calls on communicators beyond the number that is kept apart.
        refused: u64;
        /// API calls whose return was not seen, where returns are traced.
        unreturned_calls: u64;
        /// Returns whose API call was not seen: it was under way when the session opened.
        uncalled_returns: u64;
        /// Counts of walked plans.
        plans: PlanCounters;
        /// Counts of launches of CUDA graphs.
        graphs: GraphCounters;
    }
}

counters! {
    /// Counts of what was not measured because it was not asked for.
    pub struct LeftOut {
        /// Ops, counted once for each channel.
        ops: u64;
        /// Messages of these ops.
        messages: u64;
        /// Steps of these ops that came nevertheless.
        hits: u64;
    }
}

counters! {
    /// Counts of launches of CUDA graphs; where the driver's functions are probed.
    pub struct GraphCounters {
        /// Launches of graphs, of any content.
        launches: u64;
        /// Launches among them whose captured ops are known.
        replays: u64;
        /// Launches of graphs of which not all is known: their capture was not seen from its beginning to its end,
        /// they are clones or were made node by node, records of their process were lost, or it was not seen which
        /// executable came of them.
        unknown: u64;
        /// Launches of graphs whose whole capture was seen, without an op of NCCL.
        without_ops: u64;
        /// Ops in those replays that have lines: those without a proxy. (Others are seen as they are posted.)
        ops: u64;
        /// Ops in those replays that have no line, as there were too many, or too many in a short time.
        left_out: u64;
    }
}

counters! {
    /// Counts of what could not be put together of walked plans.
    pub struct PlanCounters {
        /// Plans that were walked after their launch.
        plans: u64;
        /// Plans that were longer than a walk goes, or in which a link to the next node could not be read.
        cut: u64;
        /// Bytes of device work that were cut off, over all plans; a collective has about 100, a send with
        /// its receive 48.
        work_bytes_cut: u64;
        /// Plans some of whose records were lost: of their ops only those that were posted are known.
        incomplete: u64;
        /// Device work whose ops do not follow from the plan (grouped broadcasts): ops that need a proxy are
        /// known, others are not.
        underived: u64;
        /// Derived ops, or messages of PAT, that differ from the posted ones; the posted one counts. Not 0:
        /// this version computes them in another way, and ops that need no proxy may be wrong.
        derived_otherwise: u64;
        /// Ops of PAT whose messages are not known peer by peer (record call by call to see them): in
        /// versions later than the known ones, and between nodes of several ranks.
        without_messages: u64;
        /// Ops of a channel whose graphs were not seen.
        without_graphs: u64;
        /// Launches without proxy ops: kernels on symmetric memory.
        symmetric: u64;
        /// Copies by copy engines.
        copy_engine: u64;
        /// One-sided calls.
        one_sided: u64;
        /// Launches among them of which neither function nor bytes are known: they are counted only.
        untold: u64;
        /// Plans in which nothing was found: a kind of launch that ncclflow does not know.
        empty: u64;
    }
}
