//! The iterations that a window contains (`--window-iterations`).

use serde::{Deserialize, Serialize};

/// The training iterations of a window. They are inferred from the sequence of collectives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowIterations {
    /// Number that was asked for.
    pub wanted: u64,
    /// Set if so many were found; if not, the window is as long as the flag was there.
    pub found: bool,
    /// Always true: NCCL knows of no iterations.
    pub inferred: bool,
    /// Why none were found, or not as many as were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
    /// Collectives of an iteration; of several processes, those of most of them.
    pub period_collectives: Option<u64>,
    /// Beginning and end in each process.
    pub processes: Vec<ProcessIterations>,
    /// Ops on a channel, and calls, that are in the recording and in none of these iterations.
    pub ops_outside: u64,
}

/// The iterations of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIterations {
    /// Process ID as ncclflow sees it.
    pub pid: u32,
    pub period_collectives: u64,
    pub iterations: u64,
    /// Beginning of the first iteration, by the records' clock …
    pub from_ns: u64,
    /// … and of the one after the last; `None` if nothing came after it.
    pub until_ns: Option<u64>,
}

impl WindowIterations {
    /// Begins the search for so many.
    pub fn wanted(wanted: u64) -> Self {
        Self { wanted, inferred: true, ..Self::default() }
    }

    /// Tells whether the iterations contain a process's activity at this time. For a process without its own,
    /// activity during others' iterations counts.
    pub fn take(&self, pid: u32, ts_ns: u64) -> bool {
        let is_in = |from: u64, until: Option<u64>| ts_ns >= from && until.is_none_or(|until| ts_ns < until);
        if !self.found {
            return true;
        }
        if let Some(own) = self.processes.iter().find(|process| process.pid == pid) {
            return is_in(own.from_ns, own.until_ns);
        }
        let from = self.processes.iter().map(|process| process.from_ns).min().unwrap_or(0);
        let until = self.processes.iter().map(|process| process.until_ns.unwrap_or(u64::MAX)).max();
        is_in(from, until)
    }
}
