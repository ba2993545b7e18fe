//! torch's notes as data. Names and numbers are those of torch's own dump of its flight recorder.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dump::PythonFrame;

/// What torch of one process has noted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotesReport {
    /// torch's version, as it states it: `2.11.0+cu130`.
    pub torch: Option<String>,
    /// Whether these layouts were tried on a torch that ran on GPUs; if not, they come from its headers alone.
    pub layouts_were_run: bool,
    /// Unix time in ns at which the rings had been read.
    pub read_ns: i64,
    pub rings: Vec<RingReport>,
    /// Why nothing, or not everything, is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// A ring of torch's flight recorder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RingReport {
    /// `nccl`, `nccl2`, `gloo`; by the names of its entries, or by torch's own table.
    pub backend: Option<String>,
    /// Off: torch takes no notes here.
    pub enabled: bool,
    pub max_entries: u64,
    /// Entries so far, also those that were overwritten.
    pub recorded: u64,
    /// NCCL's version, as torch has it.
    pub library_version: Option<String>,
    /// Entries that were overwritten while they were read, and are left out.
    pub torn: usize,
    /// Unix time in ns of the latest completion that torch's watchdog has noticed: what it says of states is of then.
    pub noticed_ns: Option<i64>,
    /// The process's rank in the job, where torch has noted it (2.15 and later).
    pub rank: Option<u32>,
    pub groups: Vec<ProcessGroupReport>,
    /// Oldest first.
    pub entries: Vec<EntryReport>,
}

/// A process group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessGroupReport {
    /// torch's name, the same on all ranks.
    pub name: String,
    /// What the program called it; `undefined` if nothing.
    pub description: String,
    /// torch's number of it in this process; null without an entry of it.
    pub pg_id: Option<u64>,
    /// The job's ranks in the order of the group's.
    pub ranks: Vec<u64>,
    /// Null where torch has none (2.4), or where there is no entry that tells which.
    pub status: Option<StatusReport>,
}

/// The latest works of a process group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    pub last_enqueued: WorkReport,
    /// -1 unless torch times its collectives.
    pub last_started: WorkReport,
    pub last_completed: WorkReport,
}

/// One work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkReport {
    /// Number of the collective in its group; -1: none yet.
    pub seq: i64,
    /// `ALLREDUCE`
    pub name: String,
    pub elements_in: Option<u64>,
    pub elements_out: Option<u64>,
}

/// An operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryReport {
    pub record_id: u64,
    pub pg_id: u64,
    /// Name and description.
    pub process_group: [Arc<str>; 2],
    pub collective_seq_id: u64,
    pub p2p_seq_id: u64,
    pub op_id: u64,
    /// `nccl:all_reduce`
    pub profiling_name: String,
    pub input_sizes: Vec<Vec<i64>>,
    /// `Float`
    pub input_dtypes: Vec<String>,
    pub output_sizes: Vec<Vec<i64>>,
    pub output_dtypes: Vec<String>,
    /// `scheduled`, `started` or `completed`, as far as torch has noticed.
    pub state: String,
    pub time_created_ns: i64,
    pub time_discovered_started_ns: Option<i64>,
    pub time_discovered_completed_ns: Option<i64>,
    pub duration_ms: Option<f32>,
    pub timeout_ms: Option<i64>,
    pub is_p2p: bool,
    pub retired: bool,
    pub thread_id: Option<u64>,
    pub thread_name: Option<String>,
    /// Innermost first; null: not known.
    pub frames: Option<Arc<[PythonFrame]>>,
}

impl EntryReport {
    pub(crate) fn is_completed(&self) -> bool {
        self.time_discovered_completed_ns.is_some()
    }

    /// Without the backend: `all_reduce`.
    pub(crate) fn function(&self) -> &str {
        self.profiling_name.split_once(':').map_or(&*self.profiling_name, |(_, function)| function)
    }
}
