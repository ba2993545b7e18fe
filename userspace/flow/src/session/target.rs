//! A process of a session.

use serde::{Deserialize, Serialize};

use super::lenient;
use crate::identity::{Job, Whose};

/// A process, and what is traced of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetReport {
    /// Number of the process in our PID namespace.
    pub pid: u32,
    /// Number that the process itself sees.
    pub own_pid: u32,
    pub name: String,
    /// Indexes into `libraries`.
    pub libraries: Vec<usize>,
    pub exited: bool,
    /// Start of the process, in ticks since boot. With the PID, it identifies the process.
    pub started_ticks: Option<u64>,
    /// Latest time from which its hits are recorded, by the records' clock; with `--all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub followed_since_ns: Option<u64>,
    /// Why it is not traced, though it has NCCL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untraced: Option<String>,
    /// `None`: it had ended, or could not be looked at.
    #[serde(flatten)]
    pub whose: Option<Whose>,
    /// At the end of the recording or window.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::value")]
    pub job: Option<Job>,
    /// Version of its Python, or `not known: ` and why its stacks are not; with `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
}
