//! Losses of a recording.

row! {
    /// Everything that was lost. Zeroes are written too.
    #[derive(Copy, Default, Eq)]
    pub struct LossReport {
        /// Hits whose record found the kernel's buffer full.
        "records_lost": Measured, #[serde(default)] records_lost: u64;
        /// Records that were dropped because writing the recording did not keep up.
        "records_dropped": Measured, #[serde(default)] records_dropped: u64;
        /// Hits unaccounted for. More than 0 is a fault of ncclflow.
        "records_unaccounted": Measured, #[serde(default)] records_unaccounted: u64;
        /// Records that could not be understood.
        "records_undecodable": Measured, #[serde(default)] records_undecodable: u64;
        /// Lines that could not be written: the disk or a limit was full.
        "lines_lost": Measured, #[serde(default)] lines_lost: u64;
        /// Lines among `lines_lost` that `--max-size` left no room for.
        "lines_over_max_size": Measured, #[serde(default)] lines_over_max_size: u64;
        /// Files `flow_rank<r>.json` that `--max-size` left no room for.
        "aggregates_over_max_size": Measured, #[serde(default)] aggregates_over_max_size: u64;
        /// Windows that were opened late: `--max-size` left no room for them, or the disk was full.
        "windows_late": Measured, #[serde(default)] windows_late: u64;
        /// Records that could not be written into the folder `recording`: the disk or a limit was full.
        "records_not_recorded": Measured, #[serde(default)] records_not_recorded: u64;
    }
}

impl LossReport {
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

row! {
    /// Records that are missing between two moments.
    #[derive(Copy, Eq)]
    pub struct Gap {
        /// CLOCK_MONOTONIC of the last record before the gap; 0: from the beginning.
        "from_ns": Measured "ns", from_ns: u64;
        /// CLOCK_MONOTONIC of the first record after the gap.
        "to_ns": Measured "ns", to_ns: u64;
        /// Missing records.
        "records": Derived, records: u64;
    }
}

impl Gap {
    /// Joins another gap to this one.
    pub fn join(&mut self, other: &Self) {
        self.from_ns = self.from_ns.min(other.from_ns);
        self.to_ns = self.to_ns.max(other.to_ns);
        self.records = self.records.saturating_add(other.records);
    }
}

row! {
    /// A CPU's account while the session was open: `hits = delivered + lost + dropped`.
    #[derive(Copy, Default, Eq)]
    pub struct CpuReport {
        /// Number of the CPU.
        "cpu": Identity, cpu: u32;
        /// Hits of probes.
        "hits": Measured, hits: u64;
        /// Records that reached the writer of the recording.
        "delivered": Measured, delivered: u64;
        /// Hits whose record found the kernel's buffer full.
        "lost": Measured, lost: u64;
        /// Records that were dropped because writing the recording did not keep up.
        "dropped": Measured, dropped: u64;
    }
}

impl CpuReport {
    /// Adds the account of another CPU, or of another probe.
    pub fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.delivered += other.delivered;
        self.lost += other.lost;
        self.dropped += other.dropped;
    }
}
