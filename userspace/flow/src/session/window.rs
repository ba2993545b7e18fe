//! Windows: parts of a recording that have a folder of their own.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{WindowIterations, lenient};
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
