//! Entries of torch's flight recorder.

use std::sync::Arc;

/// A function on the stack of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Name as torch has it: `co_name`, or the demangled name of a native function; `??`: not known.
    pub name: String,
    /// File; `??`: not known.
    pub filename: String,
    /// Line; 0: not known.
    pub line: u32,
}

impl Frame {
    /// torch's word for an unknown name or file.
    pub const UNKNOWN: &str = "??";
}

/// Progress of an operation, as far as somebody has looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Number of the entry among those of the rank, over all groups. torch's analyser leaves out entries
    /// before the largest of the ranks' first numbers.
    pub record_id: u64,
    /// torch's `ProcessGroupNCCL::uid_`: the key of `pg_status`.
    pub pg_id: u64,
    /// Name and description of the process group, as in its [`ProcessGroup`].
    pub process_group: (Arc<str>, Arc<str>),
    /// Number of the group's collectives so far, this one included: ranks are matched by it.
    pub collective_seq_id: u64,
    /// Number of the group's sends and receives so far, this one included; those of one group call
    /// (`ncclGroupStart`) count once.
    pub p2p_seq_id: u64,
    /// Number of all operations of the group so far, this one included.
    pub op_id: u64,
    /// Name of the operation: `nccl:all_reduce`, `nccl:send 0->1`.
    pub profiling_name: String,
    /// Time of the call, as Unix time in ns.
    pub time_created_ns: u64,
    /// Time on the GPU in ms; the key is left out where it is not known.
    pub duration_ms: Option<f64>,
    /// Size of each input tensor in each dimension.
    pub input_sizes: Vec<Vec<i64>>,
    /// Element types by `c10::toString(ScalarType)`: `Float`, `BFloat16`.
    pub input_dtypes: Vec<String>,
    pub output_sizes: Vec<Vec<i64>>,
    pub output_dtypes: Vec<String>,
    pub state: State,
    /// Unix times in ns at which torch noticed the start and the end.
    pub time_discovered_started_ns: Option<u64>,
    pub time_discovered_completed_ns: Option<u64>,
    /// torch's watchdog is done with the operation.
    pub retired: bool,
    pub timeout_ms: Option<i64>,
    /// The operation is a send or receive, called by itself or in a group.
    pub is_p2p: bool,
    /// `pthread_self` as a decimal number, like torch's. The key is left out where nothing is known, as torch
    /// before 2.7 did.
    pub thread_id: Option<String>,
    pub thread_name: Option<String>,
    /// Call stack, innermost function first. The key is left out where no stack is known, as torch does
    /// without stacks.
    pub frames: Option<Arc<[Frame]>>,
}

/// A process group of torch: a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroup {
    /// The number that [`Entry::pg_id`] has.
    pub id: u64,
    /// Key of `pg_config`.
    pub name: Arc<str>,
    /// Description; `undefined`: nobody gave one. All ranks of a group have to have the same.
    pub desc: Arc<str>,
    /// The job's ranks in the order of the group's.
    pub ranks: Vec<u64>,
    /// Status, left out of `pg_status` where it is not known.
    pub status: Option<GroupStatus>,
}

/// Numbers of the latest collectives (`collective_seq_id`); -1: none, or not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    pub last_enqueued: i64,
    pub last_started: i64,
    pub last_completed: i64,
}
