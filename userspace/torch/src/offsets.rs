//! Offsets of the fields that are read, in bytes from the beginning of each struct.
//!
//! `cargo xtask make torch-offsets` makes them: a C++ program that prints the offset of each field, compiled
//! against the headers of a release's own wheel. torch/csrc/distributed/c10d/FlightRecorder.hpp (2.5:
//! NCCLUtils.hpp, 2.4: TraceUtils.h), logger.hpp, and torch/csrc/profiler/combined_traceback.h.

use serde::{Deserialize, Serialize};

use crate::Version;

/// Every offset that a look at torch's notes needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offsets {
    pub version: Version,
    /// `_GLIBCXX_USE_CXX11_ABI`, which tells libstdc++'s two kinds of strings apart. PyPI's wheels have the
    /// older one up to 2.6.
    pub cxx11: bool,
    pub recorder: RecorderOffsets,
    pub entry: EntryOffsets,
    pub traceback: TracebackOffsets,
    /// 2.5 and later
    pub status: Option<StatusOffsets>,
    pub group: GroupOffsets,
}

/// `c10d::FlightRecorder` (2.4 and 2.5: `NCCLTraceBuffer`)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecorderOffsets {
    pub size: u32,
    pub enabled: u32,
    pub capture_cpp_stack: u32,
    /// A `std::mutex`, which is the C library's `pthread_mutex_t`.
    pub mutex: u32,
    /// `std::vector<Entry>`
    pub entries: u32,
    pub max_entries: u32,
    pub next: u32,
    pub id: u32,
    /// 2.10 and later
    pub reset_epoch: Option<u32>,
    /// `all_pg_status_`: 2.5 and later
    pub statuses: Option<u32>,
    /// `pg_name_to_ranks_`
    pub groups: u32,
    /// `nccl_version_` (2.8), then `comm_lib_version_`
    pub library_version: Option<u32>,
    /// 2.15 and later: the process's rank in the job, or -1
    pub rank: Option<u32>,
}

/// `FlightRecorder::Entry`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryOffsets {
    pub size: u32,
    pub id: u32,
    /// 2.10 and later
    pub reset_epoch: Option<u32>,
    pub pg_id: u32,
    /// The first string of `pg_name_`
    pub group_name: u32,
    /// The second string of `pg_name_`
    pub group_description: u32,
    pub collective_seq: u32,
    pub p2p_seq: u32,
    pub op_id: u32,
    pub profiling_name: u32,
    /// A `std::shared_ptr`, whose first word is the pointer
    pub traceback: u32,
    pub time_created: u32,
    /// 2.5 and later
    pub timeout_ms: Option<u32>,
    pub is_p2p: u32,
    pub duration: u32,
    pub time_started: u32,
    pub time_completed: u32,
    /// `c10::SmallVector`: the number of dimensions of each input
    pub input_dims: u32,
    pub input_dtypes: u32,
    pub output_dims: u32,
    pub output_dtypes: u32,
    /// `c10::SmallVector<int64_t>`: the dimensions of all inputs, then of all outputs
    pub sizes: u32,
    /// Bytes of an element of `input_dims` and `output_dims`: 4 up to 2.5
    pub dim_bytes: u32,
    /// 2.8 and later
    pub thread_id: Option<u32>,
    pub thread_name: Option<u32>,
    pub retired: u32,
}

/// `torch::CapturedTraceback`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracebackOffsets {
    /// `std::vector<PyFrame>`
    pub frames: u32,
    /// Bytes of a `PyFrame`
    pub frame_size: u32,
    /// Offset in a `PyFrame` of its code object
    pub code: u32,
    /// Offset in a `PyFrame` of `lasti`, an `int`, in bytes from the first instruction
    pub last_instruction: u32,
}

/// `c10d::ProcessGroupStatus` (TraceUtils.h up to 2.7). In 2.4 it stands in `ProcessGroupNCCL` alone, and the
/// ring does not lead to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusOffsets {
    pub size: u32,
    pub enqueued: WorkOffsets,
    pub started: WorkOffsets,
    pub completed: WorkOffsets,
}

/// The part of a status about one work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkOffsets {
    pub seq: u32,
    pub name: u32,
    /// Elements that go in and come out; for the started work 2.6 and later
    pub elements_in: Option<u32>,
    pub elements_out: Option<u32>,
}

/// A value of `pg_name_to_ranks_`: a pair of a tuple of two strings and a `std::vector<uint64_t>`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupOffsets {
    pub size: u32,
    pub name: u32,
    pub description: u32,
    pub ranks: u32,
}
