//! torch's notes as data. Names and numbers are those of torch's own dump of its flight recorder.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::python::PythonFrame;

/// Notes of the torch in one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotesReport {
    /// torch's version, as it states it: `2.11.0+cu130`.
    pub torch: Option<String>,
    /// The layouts were tried on a torch that ran on GPUs; if not, they come from its headers alone.
    pub layouts_were_run: bool,
    /// Unix time in ns at which the rings had been read.
    pub read_ns: i64,
    pub rings: Vec<RingReport>,
    /// Reason why nothing is known, or not everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// A ring of torch's flight recorder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RingReport {
    /// Backend: `nccl`, `nccl2`, `gloo`; by the names of its entries, or by torch's own table.
    pub backend: Option<String>,
    /// torch takes notes in this ring.
    pub enabled: bool,
    pub max_entries: u64,
    /// Number of entries so far, also those that were overwritten.
    pub recorded: u64,
    /// NCCL's version, as torch has it.
    pub library_version: Option<String>,
    /// Number of entries that were overwritten while they were read, and are left out.
    pub torn: usize,
    /// Unix time in ns of the latest start or completion that torch's watchdog has noticed: the states of
    /// entries are of that time.
    pub noticed_ns: Option<i64>,
    /// The process's rank in the job, where torch has noted it (2.15 and later).
    pub rank: Option<u32>,
    pub groups: Vec<ProcessGroupReport>,
    /// Entries, oldest first.
    pub entries: Vec<EntryReport>,
}

/// A process group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessGroupReport {
    /// torch's name, the same on all ranks.
    pub name: String,
    /// Name that the program gave; `undefined` if none.
    pub description: String,
    /// torch's number of the group in this process; null if no entry is of the group.
    pub pg_id: Option<u64>,
    /// The job's ranks in the order of the group's.
    pub ranks: Vec<u64>,
    /// Status; null where torch has none (2.4), or where no entry tells which it is.
    pub status: Option<StatusReport>,
}

/// The latest works of a process group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    pub last_enqueued: WorkReport,
    /// The latest work that has started; -1 unless torch times its collectives.
    pub last_started: WorkReport,
    pub last_completed: WorkReport,
}

/// A collective in the status of a process group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkReport {
    /// Number of the collective in its group; -1: none yet.
    pub seq: i64,
    /// Kind of collective: `ALLREDUCE`.
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
    /// Name and description of the process group.
    pub process_group: [Arc<str>; 2],
    pub collective_seq_id: u64,
    pub p2p_seq_id: u64,
    pub op_id: u64,
    /// Name of the operation: `nccl:all_reduce`.
    pub profiling_name: String,
    pub input_sizes: Vec<Vec<i64>>,
    /// Element types: `Float`.
    pub input_dtypes: Vec<String>,
    pub output_sizes: Vec<Vec<i64>>,
    pub output_dtypes: Vec<String>,
    /// State, as far as torch has noticed: `scheduled`, `started` or `completed`.
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
    /// Call stack, innermost function first; null: not known.
    pub frames: Option<Arc<[PythonFrame]>>,
}

impl EntryReport {
    pub(crate) fn is_completed(&self) -> bool {
        self.time_discovered_completed_ns.is_some()
    }

    /// Returns the name without the backend: `all_reduce`.
    pub(crate) fn function(&self) -> &str {
        self.profiling_name.split_once(':').map_or(&*self.profiling_name, |(_, function)| function)
    }
}
