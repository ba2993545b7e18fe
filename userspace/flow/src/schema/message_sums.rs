//! Messages of an op that were only planned, added up.

use nccl_library::nccl::{Direction, Transport};

/// The messages of an op with one peer, added up: they follow from the op, and a ring of 1,024 ranks has 2,046 of
/// them for each loop, channel and direction. All of it is planned, or derived from what is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSums {
    pub op: Direction,
    pub peer: i32,
    pub channel: u32,
    pub transport: Transport,
    pub messages: u64,
    /// Bytes of those whose size follows from the plan, and capacities of the others.
    pub bytes_exact: u64,
    pub bytes_capacity: u64,
}
