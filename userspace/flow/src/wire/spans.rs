//! Where each probe's record has what.

use serde::{Deserialize, Serialize};

use super::Span;
use nccl_library::nccl::ApiFunction;

/// Who the communicator is, read anew in every record: its address can come to mean another one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CommunicatorSpans {
    pub pointer: Span,
    pub rank: Span,
    pub n_ranks: Span,
    /// From 2.18.
    pub hash: Option<Span>,
    /// Collectives launched so far per function, u64 each; from 2.26 NCCL counts them whether a profiler
    /// plugin is loaded or not, as its reliability service reads them too (`ncclComm.seqNumber`,
    /// src/plugin/profiler.cc).
    pub launched_per_function: Option<Span>,
    /// Collectives launched so far, of all communicators that share resources; up to 2.26 counted for plans
    /// without proxy ops too (`ncclSharedResources.collOpCount`, src/enqueue.cc, uploadProxyOps).
    pub posted_collectives: Option<Span>,
}

/// The API's view of an op, reached through `ncclProxyOp.task` (2.23 and later). A union of a collective's
/// and a p2p call's task; the op's pattern says which.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct TaskSpans {
    pub pointer: Span,
    pub coll_count: Span,
    pub coll_datatype: Span,
    pub coll_function: Span,
    pub p2p_bytes: Span,
    /// Channels that a p2p call is split over; 2.27 and later, for the profiler.
    pub p2p_channels: Option<Span>,
}

/// Where the record of `ncclProxySaveOp` has what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ProxyOpSpans {
    pub comm: CommunicatorSpans,
    /// Address of the `ncclProxyOp`.
    pub op_pointer: Span,
    /// Zero in the post pass.
    pub just_inquire: Span,
    /// The whole `ncclProxyOp`.
    pub op: Span,
    /// `ncclRing.prev`, `next` and `index` of the op's channel.
    pub ring: [Span; 3],
    /// `ncclTree.up` and `down` (up to three) of the op's channel.
    pub tree_up: Span,
    pub tree_down: Span,
    pub task: Option<TaskSpans>,
    /// Where the op does not say what its channel carries.
    #[serde(default)]
    pub work: Option<OpWorkSpans>,
}

/// The device work that an op was made for, in the plan pass. What lies at an address that is 0 means
/// nothing.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum OpWorkSpans {
    /// 2.20 and 2.21: the last `ncclWork` of the op's channel in the plan that is being made.
    Elements {
        /// Address of its `ncclWorkList`.
        address: Span,
        /// The `ncclWork`.
        work: Span,
        /// How many elements it has: `nWorkElem`, `p2pTailElem`, a union.
        counts: Span,
    },
    /// 2.22 and 2.23: the `ncclWorkList` of the collective that is being planned, and the device work behind
    /// it; of a send or receive it is another's.
    Node { address: Span, bytes: Span },
}

/// Where the record of `SaveProxy` has what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ProxyPeerSpans {
    /// `ncclComm`; 2.18 and later have it among the parameters.
    pub comm_pointer: Option<Span>,
    pub op_pointer: Span,
    /// 0 receive, 1 send (`proxyRecv`, `proxySend`).
    pub direction: Span,
    pub peer: Span,
    pub connection_index: Span,
    pub just_inquire: Span,
    /// At this very call: PAT and grouped all-gathers change it from peer to peer.
    pub nsteps: Span,
    /// Address of the `ncclProxyConnection`: names the connection in step records.
    pub connection: Span,
    /// Not zero where the connector has a proxy: only then is an op posted.
    pub proxy_progress: Span,
    pub owner: Option<ProxyOwnerSpans>,
    /// First 8 bytes of the transport's name.
    pub transport: Span,
}

/// Whose proxy serves a connection; 2.18 and later.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ProxyOwnerSpans {
    /// `ncclProxyConnector.sameProcess`.
    pub same_process: Span,
    /// `tpRank`: rank in the communicator whose resources are shared.
    pub top_rank: Span,
    /// `rank`, from 2.23 on.
    pub rank: Option<Span>,
}

/// Where the record of `ncclEnqueueCheck` has what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ApiCallSpans {
    pub comm: CommunicatorSpans,
    pub function: Span,
    pub name: Span,
    pub count: Span,
    pub datatype: Span,
    pub reduction_op: Span,
    pub root: Span,
}

/// Where the record of `ncclEnqueueCheck` has what, where each call becomes a line of its own (`--level
/// api`).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ApiLineSpans {
    pub comm: CommunicatorSpans,
    /// `ncclComm.opCount`, as NCCL's own log line of the call has it.
    pub op_count: Option<Span>,
    pub function: Span,
    pub name: Span,
    pub send_buffer: Span,
    pub recv_buffer: Span,
    pub count: Span,
    pub datatype: Span,
    pub reduction_op: Span,
    pub root: Span,
    pub stream: Span,
    /// At the entry of `ncclEnqueueCheck`.
    pub stack_pointer: Span,
    /// Ops are recorded, too.
    #[serde(default)]
    pub with_ops: bool,
}

/// Where the record of an exported function that communicates has its arguments, where NCCL's own structs are
/// not known (`--level api`). What the function does not have is `None`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ApiArgumentsSpans {
    pub function: ApiFunction,
    /// Address of the `ncclComm`: nothing of it can be read.
    pub comm: Span,
    pub stream: Span,
    pub send_buffer: Option<Span>,
    pub recv_buffer: Option<Span>,
    pub count: Option<Span>,
    pub datatype: Option<Span>,
    pub reduction_op: Option<Span>,
    /// Root of a collective, peer of a p2p or one-sided call.
    pub root: Option<Span>,
    /// At the function's entry.
    pub stack_pointer: Span,
}

/// Where the record of an exported function's entry has what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ApiEntrySpans {
    pub function: ApiFunction,
    pub stack_pointer: Span,
}

/// Where the record of an exported function's return has what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ApiReturnSpans {
    pub function: ApiFunction,
    /// `ncclResult_t`.
    pub result: Span,
    pub stack_pointer: Span,
}

/// Where the record of a profiler hook of a proxy's step has what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ProxyStepSpans {
    pub hook: StepHook,
    /// FIFO step at which the message begins, counted from the op's first (`stepId`).
    pub step: Span,
    /// State that the message enters; of [`StepHook::State`] and [`StepHook::Record`] only.
    pub state: Option<Span>,
    /// `ncclProxyArgs.opCount`: final.
    pub op_count: Span,
    /// `ncclProxyArgs.nsubs`: ops of several connections that are taken together, and share the slots.
    pub n_subs: Span,
    /// Address of the `ncclProxyConnection`.
    pub connection: Span,
    /// `ncclProxyConnection.send`: 1 where this rank sends; where the state does not say it.
    pub sends: Option<Span>,
    /// `ncclProxyConnection.sameProcess`: 0 where another process posted the op; with `sends`, 2.18 and
    /// later.
    pub same_process: Option<Span>,
    /// `ncclProxySubArgs.transSize`: bytes of the message, once its size is known; of [`StepHook::State`],
    /// 2.23 and later, and in 2.23 of [`StepHook::Stop`].
    pub size: Option<Span>,
    /// Whose `transSize` it is: `ncclProxyArgs`, and the place of the op in it; where it is a sum over
    /// messages (2.23 to 2.26).
    pub summed: Option<[Span; 2]>,
    /// A send is added to the sum after it was told (2.23).
    #[serde(default)]
    pub adds_later: bool,
    /// Sizes of the messages in the slots, where they stand there and nowhere else (2.20 to 2.22): of sends
    /// only.
    pub slots: Option<SlotSizesSpans>,
}

/// `ncclRecvMem.connFifo` of a send's connection.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SlotSizesSpans {
    /// All entries.
    pub entries: Span,
    /// Bytes of an entry, and where in it the size is.
    pub entry_bytes: u16,
    pub size_at: u16,
    pub size_bytes: u16,
    /// `ncclProxySubArgs.base`: FIFO step of the connection at which the op begins.
    pub base: Span,
}

/// Where the record of a send's slot that is given back has what: made just before [`StepHook::Record`] tells
/// that the message was sent, by the same thread (2.16 to 2.19).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SendSizeSpans {
    /// The entry of `ncclRecvMem.sizesFifo`: what the network was given.
    pub bytes: Span,
}

/// Which hook it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepHook {
    /// The message enters a state.
    State,
    /// It is done.
    Stop,
    /// Any of these, by the state's number: `ncclProxyProfileState`, up to 2.22.
    Record,
}

/// Where the last record of a walked plan has what: that of the probe itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanSpans {
    pub comm: CommunicatorSpans,
    /// Address of the `ncclKernelPlan`.
    pub plan: Span,
    /// The plan is posted by CUDA's callback thread (`hostStreamPlanCallback`), and this is it.
    pub in_callback: bool,
    /// `ncclKernelPlan.persistent`: it is part of a CUDA graph.
    pub persistent: Span,
    /// `ncclKernelPlan.isHostCbEnq` (2.24 and later), or `ncclComm.persistentRefs`: not 0 if it is posted by
    /// the callback.
    pub by_callback: Span,
    /// `ncclKernelPlan.channelMask`.
    pub channel_mask: Span,
    /// `ncclKernelPlan.workBytes`.
    pub work_bytes: Span,
    /// Nodes found of each list, in the order of [`PlanList`].
    pub nodes: Vec<(PlanList, Span)>,
}

/// A list that is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PlanList {
    /// `ncclKernelPlan.collTaskQueue`.
    CollTasks,
    /// `ncclKernelPlan.workQueue`.
    Works,
    /// `ncclKernelPlan.p2pTaskQueue`.
    P2pTasks,
    /// The `ncclDevWorkBatch` behind `ncclKernelPlan.kernelArgs`.
    Batches,
    /// `ncclSharedResources.p2pOpCount` and `collOpCount`, in one piece.
    OpCounts,
    /// `ncclKernelPlan.proxyOpQueue`.
    ProxyOps,
}

impl PlanList {
    /// NCCL's name of what holds it.
    pub fn name(self) -> &'static str {
        match self {
            Self::CollTasks => "collTaskQueue",
            Self::Works => "workQueue",
            Self::P2pTasks => "p2pTaskQueue",
            Self::Batches => "kernelArgs",
            Self::OpCounts => "opCounts",
            Self::ProxyOps => "proxyOpQueue",
        }
    }
}

/// Where the record of a node has what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PlanNodeSpans {
    pub list: PlanList,
    pub address: Span,
    /// The node's bytes, as far as they are needed.
    pub bytes: Span,
    /// Of a proxy op.
    pub task: Option<TaskSpans>,
}

/// Where the record of a channel of a communicator has what. -1: nobody there.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ChannelSpans {
    pub channel: Span,
    /// `ncclRing.prev`, `next` and `index`.
    pub ring: [Span; 3],
    pub tree_up: Span,
    pub tree_down: Span,
    /// `collnetChain.up`, `collnetDirect.out`, `nvls.out`, `nvls.treeUp`.
    pub collnet_chain_up: Span,
    pub collnet_direct_out: Span,
    pub nvls_out: Option<Span>,
    pub nvls_tree_up: Option<Span>,
    pub nvls_tree_down: Option<Span>,
    /// `nHeads` and `headRank` of `nvls` and of `collnetDirect`.
    pub nvls_heads: Option<[Span; 2]>,
    pub collnet_heads: [Span; 2],
    /// `ncclComm.buffSizes`, an `int` for each protocol.
    pub buffer_sizes: Span,
    /// `ncclComm.nNodes`.
    pub n_nodes: Option<Span>,
}

/// Where the record of some connectors of a channel has what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectorsSpans {
    pub channel: Span,
    pub connectors: Vec<ConnectorSpans>,
}

/// One connector.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ConnectorSpans {
    pub sends: bool,
    pub connection_index: i32,
    pub peer: Span,
    /// As in [`ProxyPeerSpans`].
    pub connection: Span,
    pub proxy_progress: Span,
    pub owner: Option<ProxyOwnerSpans>,
    pub transport: Span,
}

/// What a probe, or a part of one that walks, is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ProbeKind {
    Plan(PlanSpans),
    PlanNode(PlanNodeSpans),
    Channel(ChannelSpans),
    Connectors(ConnectorsSpans),
    /// Finds the lists of a walk; sends nothing.
    Head,
    ProxyOp(ProxyOpSpans),
    ProxyPeer(ProxyPeerSpans),
    ApiCall(ApiCallSpans),
    ApiLine(ApiLineSpans),
    ApiArguments(ApiArgumentsSpans),
    ApiEntry(ApiEntrySpans),
    ApiReturn(ApiReturnSpans),
    ProxyStep(ProxyStepSpans),
    SendSize(SendSizeSpans),
    /// The call stack of a thread at another probe's hit: [`ncclflow_common::StackHead`].
    Stack,
}
