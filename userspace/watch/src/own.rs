//! State of the loop itself, for metrics. Pure.

use inspect::process::Visibility;

/// Numbers of the loop itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnState {
    pub readings: u64,
    pub processes: usize,
    /// Processes that did not let themselves be read at the last reading.
    pub unread: usize,
    /// Processes with NCCL that are not watched, as there are too many.
    pub left_out: usize,
    /// How much of the node may be looked at; with `--all`.
    pub sight: Visibility,
    /// Readings that came late: ncclflow got too little of the processor.
    pub late: u64,
    pub dumps_lost: u64,
    pub exec_failed: u64,
    pub exec_left_out: u64,
    /// The GPUs' driver does not answer.
    pub gpus_hang: bool,
}
