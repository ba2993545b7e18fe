//! The events of all descriptor versions in one shape.

use crate::handle::Handle;

/// What NCCL wants to start. Fields that a version does not have are `None`.
#[derive(Debug)]
pub(crate) enum Event {
    /// A launch: the collectives and p2p calls of one plan share it as their parent.
    Group,
    Coll(Coll),
    P2p(P2p),
    ProxyOp(ProxyOp),
    ProxyStep {
        step: i32,
    },
}

/// A descriptor, read.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) event: Event,
    /// The launch of a collective or p2p call, the call of a proxy op, the proxy op of a step.
    pub(crate) parent: Option<Handle>,
    /// Zero in some of the calls without a rank of their own.
    pub(crate) rank: i32,
}

#[derive(Debug, Default)]
pub(crate) struct Coll {
    /// v1–v3; later versions give it once, at init.
    pub(crate) comm_hash: Option<u64>,
    pub(crate) seq_number: u64,
    pub(crate) send_buff: Option<usize>,
    pub(crate) func: String,
    pub(crate) count: usize,
    pub(crate) datatype: String,
    /// v1 only, a number of `ncclRedOp_t`.
    pub(crate) red_op: Option<u32>,
    pub(crate) root: i32,
    pub(crate) algo: String,
    pub(crate) proto: String,
    /// v4 and later.
    pub(crate) channels: Option<u8>,
    /// v1–v3: an upper bound, not what the collective takes.
    pub(crate) max_channels: Option<u8>,
    pub(crate) warps: u8,
    /// v1–v2.
    pub(crate) traffic_bytes: Option<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct P2p {
    /// v1–v3.
    pub(crate) comm_hash: Option<u64>,
    pub(crate) func: String,
    pub(crate) count: usize,
    pub(crate) datatype: String,
    pub(crate) peer: i32,
    /// v4 and later.
    pub(crate) channels: Option<u8>,
}

#[derive(Debug)]
pub(crate) struct ProxyOp {
    /// The process that made the call; not this one when its traffic goes through another rank's NIC (PXN).
    pub(crate) origin_pid: i32,
    pub(crate) channel: u8,
    pub(crate) peer: i32,
    pub(crate) steps: i32,
    pub(crate) chunk_size: i32,
    pub(crate) is_send: bool,
}

/// A state transition. `steps` and a running `trans_size` come with ops up to v3, the size of a message with
/// steps from v4 on; `None` where NCCL passed no arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transition {
    pub(crate) state: i32,
    pub(crate) trans_size: Option<u64>,
    pub(crate) steps: Option<i32>,
}
