//! Sums over messages of an op that were only planned.

use nccl_library::nccl::{Direction, Transport};

/// Sums over the messages of an op with one peer: they follow from the op, and a ring of 1,024 ranks has
/// 2,046 of them for each loop, channel and direction. All values are planned, or derived from planned ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSums {
    pub op: Direction,
    pub peer: i32,
    pub channel: u32,
    pub transport: Transport,
    pub messages: u64,
    /// Bytes of the messages whose size follows from the plan; `bytes_capacity`: capacities of the others.
    pub bytes_exact: u64,
    pub bytes_capacity: u64,
}
