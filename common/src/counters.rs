//! Counters that the kernel side keeps, so that no loss goes unsaid.

/// Counters of one probe on one CPU, kept in the kernel. `hits = delivered + lost_full` at any quiet moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProbeCounters {
    /// Hits while the session is open, and so the number of the next hit. (A program that makes several
    /// records in one hit counts each of them.)
    pub hits: u64,
    /// Part of `hits`: the record was dropped because there was no room for it.
    pub lost_full: u64,
    /// Further hits, while the session was not open: before it began, or after it ended and until the probe
    /// is gone.
    pub disarmed: u64,
    /// Records sent with at least one failed read.
    pub faulted: u64,
}

impl ProbeCounters {
    /// Adds another CPU's counters.
    pub fn add(&mut self, other: &Self) {
        let Self { hits, lost_full, disarmed, faulted } = other;
        self.hits += hits;
        self.lost_full += lost_full;
        self.disarmed += disarmed;
        self.faulted += faulted;
    }
}
