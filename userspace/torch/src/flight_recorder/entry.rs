//! Entries and process groups of torch's flight recorder: the same as they are read of a running process, as
//! JSON, and for files. Names and numbers are those of torch's own dump.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use flow::schema::PythonFrame;

/// torch's word for an unknown name or file of a frame.
pub const UNKNOWN: &str = "??";

/// Progress of an operation, as far as somebody has looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The operation was called. Nobody knows more.
    #[default]
    Scheduled,
    /// The GPU has begun with the operation.
    Started,
    Completed,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Started => "started",
            Self::Completed => "completed",
        }
    }
}

/// An operation of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Number of the entry among those of the rank, over all groups. torch's analyser leaves out entries
    /// before the largest of the ranks' first numbers.
    pub record_id: u64,
    /// torch's `ProcessGroupNCCL::uid_`: the key of `pg_status`.
    pub pg_id: u64,
    /// Name and description of the process group, as in its [`ProcessGroup`].
    pub process_group: [Arc<str>; 2],
    /// Number of the group's collectives so far, this one included: ranks are matched by it.
    pub collective_seq_id: u64,
    /// Number of the group's sends and receives so far, this one included; those of one group call
    /// (`ncclGroupStart`) count once.
    pub p2p_seq_id: u64,
    /// Number of all operations of the group so far, this one included.
    pub op_id: u64,
    /// Name of the operation: `nccl:all_reduce`, `nccl:send 0->1`.
    pub profiling_name: String,
    /// Size of each input tensor in each dimension.
    pub input_sizes: Vec<Vec<i64>>,
    /// Element types by `c10::toString(ScalarType)`: `Float`, `BFloat16`.
    pub input_dtypes: Vec<String>,
    pub output_sizes: Vec<Vec<i64>>,
    pub output_dtypes: Vec<String>,
    pub state: State,
    /// Time of the call, as Unix time in ns.
    pub time_created_ns: i64,
    /// Unix times in ns at which torch noticed the start and the end.
    pub time_discovered_started_ns: Option<i64>,
    pub time_discovered_completed_ns: Option<i64>,
    /// Time on the GPU in ms.
    pub duration_ms: Option<f32>,
    pub timeout_ms: Option<i64>,
    /// The operation is a send or receive, called by itself or in a group.
    pub is_p2p: bool,
    /// torch's watchdog is done with the operation.
    pub retired: bool,
    /// `pthread_self` of the calling thread; torch before 2.7 does not note it.
    pub thread_id: Option<u64>,
    pub thread_name: Option<String>,
    /// Call stack, innermost function first. Names are torch's: `co_name`, or the demangled name of a native
    /// function, or [`UNKNOWN`].
    pub frames: Option<Arc<[PythonFrame]>>,
}

impl Entry {
    pub fn is_completed(&self) -> bool {
        self.time_discovered_completed_ns.is_some()
    }

    /// Returns the name without the backend: `all_reduce`.
    pub fn function(&self) -> &str {
        self.profiling_name.split_once(':').map_or(&*self.profiling_name, |(_, function)| function)
    }

    /// Tells whether the entry is of the process group with this name and description.
    pub fn is_of(&self, name: &str, description: &str) -> bool {
        self.process_group.each_ref().map(|name| &**name) == [name, description]
    }
}

/// A process group of torch: a communicator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessGroup {
    /// torch's name, the same on all ranks, and key of `pg_config`.
    pub name: Arc<str>,
    /// Name that the program gave; `undefined` if none. All ranks of a group have to have the same.
    pub description: Arc<str>,
    /// Number that [`Entry::pg_id`] has; null if no entry is of the group.
    pub pg_id: Option<u64>,
    /// The job's ranks in the order of the group's.
    pub ranks: Vec<u64>,
    /// Status; null where torch has none (2.4), or where no entry tells which it is.
    pub status: Option<GroupStatus>,
}

/// The latest works of a process group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupStatus {
    pub last_enqueued: Work,
    /// The latest work that has started; -1 unless torch times its collectives.
    pub last_started: Work,
    pub last_completed: Work,
}

/// A collective in the status of a process group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Work {
    /// Number of the collective in its group (`collective_seq_id`); -1: none yet, or not known.
    pub seq: i64,
    /// Kind of collective: `ALLREDUCE`.
    pub name: String,
    pub elements_in: Option<u64>,
    pub elements_out: Option<u64>,
}

impl GroupStatus {
    /// Makes the status of a group of which only the number of its collectives is known.
    pub fn enqueued(collectives: u64) -> Self {
        let work = |seq: i64| Work { seq, ..Work::default() };
        let last = i64::try_from(collectives).ok().filter(|number| *number > 0).unwrap_or(-1);
        Self { last_enqueued: work(last), last_started: work(-1), last_completed: work(-1) }
    }
}
