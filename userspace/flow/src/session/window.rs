//! Windows: parts of a recording that have a folder of their own.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::lenient;
use crate::identity::Container;

/// A part of a recording that has a folder of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowReport {
    /// Number of the window, from 1.
    pub number: u32,
    /// Folder inside the recording's.
    pub folder: String,
    /// Unix time in milliseconds.
    pub opened_unix_ms: u64,
    /// Hits were recorded from here on …
    pub opened_monotonic_ns: u64,
    /// … until here, by the records' clock.
    pub closed_monotonic_ns: Option<u64>,
    #[serde(deserialize_with = "lenient::value")]
    pub closed_by: Option<WindowEnd>,
    /// Ops and calls beyond the limit that came before the window was closed.
    pub ops_left_out: u64,
    /// The window's line files were removed for `max_size`.
    pub lines_removed: bool,
    /// Containers, if the window is for some containers' processes. Hits of others are counted as `disarmed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub containers: Option<Vec<WindowContainer>>,
    /// Training iterations, with `--window-iterations`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<WindowIterations>,
}

/// A container whose flag file opened a window of its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowContainer {
    /// Inode of `/proc/PID/ns/mnt`.
    pub mount_namespace: u64,
    /// The runtime's name of the container, where a control group tells.
    pub container: Option<Container>,
    /// Traced processes that were in it while the window was open, as ncclflow sees them.
    pub pids: BTreeSet<u32>,
}

/// Event that closed a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowEnd {
    /// The flag file had gone.
    Flag,
    /// A flag came in another container, or the host's did: the next window is for more processes.
    OtherFlag,
    MaxOps,
    MaxSecs,
    /// The window has as many iterations as were asked for.
    Iterations,
    Signal,
    Recording,
}

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
    /// Processes that were not cut, with the reason: of these the files have what they did during the others'
    /// iterations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uncut: Vec<UncutProcess>,
    /// Ops on a channel, and calls, that are in the recording and in none of these iterations.
    pub ops_outside: u64,
}

/// A process with collectives in which no iterations were found, beside others in which they were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UncutProcess {
    /// Process ID as ncclflow sees it.
    pub pid: u32,
    /// Collectives of it that were seen meanwhile.
    pub collectives: u64,
    pub why: String,
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
