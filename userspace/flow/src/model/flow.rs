//! The model's record of an op: on one channel of one rank, with its peers.

use super::{call::ProxyCall, message::Measured};
use crate::{
    decode::{Connector, Origin, ProxyOp, Ring, TaskInfo, Tree},
    schema::{Observed, Outcome, StackId, StackOf},
};
use nccl_library::nccl::{Name, datatype_bytes};

/// The communicator that a flow belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowCommunicator {
    /// `commHash`; before 2.18 there is none.
    pub hash: Option<u64>,
    pub rank: i32,
    pub n_ranks: i32,
    /// 0, or the number of communicators with the same hash and rank that were seen before this one.
    pub instance: u32,
}

/// A peer of an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFlow {
    pub connector: Connector,
    /// FIFO steps with this peer.
    pub nsteps: Option<u64>,
    /// Process whose proxy serves the connection, as ncclflow sees it, where that is another process (PXN)
    /// and is known.
    pub proxy_pid: Option<u32>,
    /// Messages as they were observed, in their order; where steps are traced and the op was posted.
    pub measured: Option<Measured>,
}

impl PeerFlow {
    /// Returns the number of messages with this peer, of `slots` FIFO steps each.
    pub(super) fn messages(&self, slots: u64) -> u64 {
        self.nsteps.unwrap_or(0).div_ceil(slots.max(1))
    }
}

/// An op on one channel: a record of `proxy_flow`, and the source of its `flow_steps`.
#[derive(Clone, Debug)]
pub struct FlowRecord {
    pub comm: FlowCommunicator,
    /// Number of the op on its communicator, shifted left by one; bit 0 is 1 for p2p, as in NCCL's own
    /// opCount.
    pub seq: u64,
    pub op: ProxyOp,
    pub ring: Ring,
    pub tree: Tree,
    pub task: Option<TaskInfo>,
    pub peers: Vec<PeerFlow>,
    /// A peer has a proxy. NCCL queues no other ops: they have no post pass.
    pub needed: bool,
    /// Origin of the plan pass's record, if the plan pass was seen.
    pub planned_at: Option<Origin>,
    /// Origin of the post pass's record, if the post pass was seen, in which NCCL queues the op for the
    /// proxy.
    pub posted_at: Option<Origin>,
    /// `seq` of the op that was captured, if this one is a CUDA graph's replay of it.
    pub captured_seq: Option<u64>,
    /// Origin of the launch of the graph that holds the op, and its number among the launches of its process, if
    /// that is how the replay is known. Such a record stands for the whole op, on all its channels.
    pub launched_at: Option<(Origin, u64)>,
    /// Position of this channel's part among the parts of a p2p call, where the call was seen from its
    /// beginning.
    pub p2p_part: Option<u64>,
    /// Records of the process were lost while the op was seen: peers, or what was measured, can be missing.
    pub incomplete: bool,
    /// Outcome of the op's messages; where steps are traced and there are messages to measure.
    pub outcome: Option<Outcome>,
    /// NCCL made the op and forgot it, as it needs no proxy; the op is computed from its plan's device work.
    pub derived: bool,
    /// Function that the user called, where the API was probed.
    pub api_name: Option<Name>,
    /// Elements that the user gave, where known.
    pub count: Option<u64>,
    /// Number of the call that the op comes from; [`Observed::Absent`] where calls are not recorded.
    pub api_call: Observed<u64>,
    /// Call stack behind the op; of a replay, behind the op that was captured.
    pub stack: Option<(StackId, StackOf)>,
}

impl FlowRecord {
    /// Makes the record of a call's op, without anything that other calls say of the op.
    pub(super) fn new(comm: FlowCommunicator, seq: u64, call: ProxyCall) -> Self {
        let ProxyCall { event, peers, incomplete, derived, queued } = call;
        // NCCL calls `SaveProxy` with -1 for an empty place in a tree, and does nothing then.
        let peers = peers.into_iter().map(|peer| (peer.nsteps, peer.connector));
        let peers = peers.filter(|(_, connector)| connector.peer >= 0);
        let peers = peers.map(|(nsteps, connector)| PeerFlow {
            connector: Connector { owner: connector.owner.filter(|_| connector.has_proxy), ..connector },
            nsteps,
            proxy_pid: None,
            measured: None,
        });
        let peers: Vec<PeerFlow> = peers.collect();
        Self {
            comm,
            seq,
            needed: queued || peers.iter().any(|peer| peer.connector.has_proxy),
            peers,
            planned_at: event.plan_pass.then_some(event.origin),
            posted_at: (!event.plan_pass).then_some(event.origin),
            captured_seq: None,
            launched_at: None,
            p2p_part: None,
            incomplete,
            outcome: None,
            derived,
            api_name: None,
            count: event.task.as_ref().and_then(|task| task.count),
            api_call: Observed::Absent,
            stack: event.origin.stack.map(|id| (StackId(id), StackOf::Launch)),
            op: event.op,
            ring: event.ring,
            tree: event.tree,
            task: event.task,
        }
    }

    /// Returns the origin of the record in which the op was first seen.
    pub fn origin(&self) -> Option<Origin> {
        self.planned_at.or(self.posted_at).or(self.launched_at.map(|(origin, _)| origin))
    }

    /// Returns the function that NCCL runs: from the op, its task or the API call.
    pub fn coll(&self) -> Option<&Name> {
        let task = self.task.as_ref().and_then(|task| task.function.as_ref());
        self.op.coll.as_ref().or(task).or(self.api_name.as_ref())
    }

    /// Returns the function that the user called.
    pub fn coll_api(&self) -> Option<&Name> {
        self.op.coll_api.as_ref().or(self.api_name.as_ref()).or_else(|| self.coll())
    }

    /// Returns the bytes that the op was called with, where they are known: a task (2.23 and later) has count
    /// and type. Before, the count is that of the API call, and its type is the op's type only where NCCL
    /// does not turn the elements into bytes.
    pub fn call_bytes(&self) -> Option<u64> {
        if let Some(launch) = &self.op.launch {
            return launch.bytes;
        }
        let task = self.task.as_ref();
        if self.op.pattern.is_p2p() {
            return task?.p2p_bytes;
        }
        let dtype = match task.and_then(|task| task.datatype.as_deref()) {
            Some(dtype) => dtype,
            None if matches!(self.coll().map(Name::as_str), None | Some("AllGather" | "Broadcast")) => {
                return None;
            }
            None => self.op.dtype.as_deref()?,
        };
        self.count?.checked_mul(datatype_bytes(dtype)?)
    }

    /// Tells whether this is a send to oneself: copied on the GPU, without a peer.
    pub fn is_copy_to_self(&self) -> bool {
        self.op.pattern.is_p2p() && self.op.root == self.comm.rank
    }
}

// Estimates of the memory that a model holds: by number of entries, not byte by byte. They are good enough to
// tell who holds most, and that all models together hold no more than they may.

/// Bytes of an op, with as many peers as most ops have.
pub(super) const RECORD_BYTES: usize = size_of::<FlowRecord>() + 2 * size_of::<PeerFlow>();

/// Bytes of a map's entry of a few numbers.
pub(super) const WORDS_BYTES: usize = 64;
