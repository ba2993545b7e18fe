//! Facts about a process: its job, user and container.

use serde::{Deserialize, Serialize};

use super::{Container, Variables};

/// A process, and whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Process number, as ncclflow sees it.
    pub pid: u32,
    /// Start of the process. With the PID, it tells the process from all others of the host: see
    /// [`TargetReport`](crate::session::TargetReport).
    pub started_ticks: Option<u64>,
    /// The kernel's short name of the process.
    pub name: String,
    #[serde(flatten)]
    pub whose: Whose,
}

/// Owner and job of a process, which do not change while it lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whose {
    pub uid: u32,
    /// Name in the recording host's `/etc/passwd`, or the number where that has no name.
    pub user: String,
    pub cgroup: Option<String>,
    pub container: Option<Container>,
    /// Variables of launchers in its initial environment; `None` if that could not be read.
    pub environment: Option<Variables>,
    /// Rank by `--rank-map`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped_rank: Option<u32>,
    /// Job's name by `--job`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named_job: Option<String>,
}
