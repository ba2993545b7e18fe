//! What could not be put together, as numbers.

/// What could not be put together. Part of every output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PlanCounters {
    /// Plans that were walked after their launch.
    pub plans: u64,
    /// Plans that were longer than a walk goes.
    pub cut: u64,
    /// Bytes of device work that were cut off, over all plans; a collective has about 100, a send with its
    /// receive 48.
    pub work_bytes_cut: u64,
    /// Plans some of whose records were lost: of their ops only those that were posted are known.
    pub incomplete: u64,
    /// Device work whose ops do not follow from the plan (grouped broadcasts): those that need a proxy are
    /// known, others are not.
    pub underived: u64,
    /// Derived ops, or messages of PAT, that differ from the posted ones; the posted one counts. Not 0: this
    /// version computes them in another way, and ops that need no proxy may be wrong.
    pub derived_otherwise: u64,
    /// Ops of PAT whose messages are not known peer by peer (record call by call to see them): of versions
    /// later than those that are known, and between nodes of several ranks.
    pub without_messages: u64,
    /// Ops of a channel whose graphs were not seen.
    pub without_graphs: u64,
}

impl PlanCounters {
    /// Adds those of another process.
    pub fn add(&mut self, other: &Self) {
        let Self {
            plans,
            cut,
            work_bytes_cut,
            incomplete,
            underived,
            derived_otherwise,
            without_messages,
            without_graphs,
        } = other;
        self.plans += plans;
        self.cut += cut;
        self.work_bytes_cut += work_bytes_cut;
        self.incomplete += incomplete;
        self.underived += underived;
        self.derived_otherwise += derived_otherwise;
        self.without_messages += without_messages;
        self.without_graphs += without_graphs;
    }
}
