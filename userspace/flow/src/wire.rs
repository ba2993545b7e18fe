//! Layouts of probes' records, on which the kernel side and the user side agree: the places of the fields in
//! each of them.

mod graph;

pub use graph::{GraphMoment, GraphSpans};

use serde::{Deserialize, Serialize};

use nccl_library::nccl::ApiFunction;

/// Place in the record where a plan puts something: byte offset from the start of the header, and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    pub at: u16,
    pub len: u16,
    /// Steps of the plan that the bytes rest on: bits as in [`ncclflow_common::RecordHeader::faults`]. If one
    /// of them failed, the bytes are worthless.
    pub rests_on: u64,
}

impl Span {
    /// Returns the place of `len` of the bytes, from `offset` on.
    #[must_use]
    pub fn part(self, offset: u16, len: u16) -> Self {
        Self { at: self.at.saturating_add(offset), len, rests_on: self.rests_on }
    }
}

/// Identity of the communicator, read anew in every record: its address can come to mean another one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CommunicatorSpans {
    pub pointer: Span,
    pub rank: Span,
    pub n_ranks: Span,
    /// `ncclComm.commHash`, from 2.18.
    pub hash: Option<Span>,
    /// Collectives launched so far per function, u64 each; from 2.26 NCCL counts them whether a profiler
    /// plugin is loaded or not, as its reliability service reads them too (`ncclComm.seqNumber`,
    /// src/plugin/profiler.cc).
    pub launched_per_function: Option<Span>,
    /// Collectives launched so far, of all communicators that share resources; up to 2.26 counted for plans
    /// without proxy ops too (`ncclSharedResources.collOpCount`, src/enqueue.cc, uploadProxyOps).
    pub posted_collectives: Option<Span>,
}

/// The API's view of an op, reached through `ncclProxyOp.task` (2.23 and later): the task of a collective or
/// of a p2p call, in a union; the op's pattern says which.
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

/// Places of the fields in the record of `ncclProxySaveOp`.
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
    /// Device work, in versions whose op does not say what its channel carries.
    #[serde(default)]
    pub work: Option<OpWorkSpans>,
}

/// The device work that an op was made for, in the plan pass. If its address is 0, the bytes mean nothing.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum OpWorkSpans {
    /// 2.20 and 2.21: the last `ncclWork` of the op's channel in the plan that is being made.
    Elements {
        /// Address of its `ncclWorkList`.
        address: Span,
        /// The `ncclWork`.
        work: Span,
        /// Numbers of its elements: `nWorkElem`, `p2pTailElem`, a union.
        counts: Span,
    },
    /// 2.22 and 2.23: the `ncclWorkList` of the collective that is being planned, and the device work behind
    /// it; for a send or receive it belongs to another op.
    Node { address: Span, bytes: Span },
}

/// Places of the fields in the record of `SaveProxy`.
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
    /// FIFO steps at this very call: PAT and grouped all-gathers change them from peer to peer.
    pub nsteps: Span,
    /// Address of the `ncclProxyConnection`, by which step records name the connection.
    pub connection: Span,
    /// Nonzero where the connector has a proxy: only then is an op posted.
    pub proxy_progress: Span,
    pub owner: Option<ProxyOwnerSpans>,
    /// First 8 bytes of the transport's name.
    pub transport: Span,
}

/// Owner of the proxy that serves a connection; 2.18 and later.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ProxyOwnerSpans {
    /// `ncclProxyConnector.sameProcess`.
    pub same_process: Span,
    /// `tpRank`: rank in the communicator whose resources are shared.
    pub top_rank: Span,
    /// `rank`, from 2.23 on.
    pub rank: Option<Span>,
}

/// Places of the fields in the record of `ncclEnqueueCheck`.
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

/// Places of the fields in the record of `ncclEnqueueCheck`, where each call becomes a line of its own
/// (`--level api`, `--api`).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ApiLineSpans {
    pub comm: CommunicatorSpans,
    /// `ncclComm.opCount`, as in NCCL's own log line of the call.
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
    /// Stack pointer at the entry of `ncclEnqueueCheck`.
    pub stack_pointer: Span,
    /// Ops are recorded, too.
    #[serde(default)]
    pub with_ops: bool,
}

/// Places of the arguments in the record of an exported function that communicates, where NCCL's own structs
/// are not known (`--level api`). Arguments that the function does not have are `None`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ApiArgumentsSpans {
    pub function: ApiFunction,
    /// Address of the `ncclComm`, whose fields cannot be read.
    pub comm: Span,
    pub stream: Span,
    pub send_buffer: Option<Span>,
    pub recv_buffer: Option<Span>,
    pub count: Option<Span>,
    pub datatype: Option<Span>,
    pub reduction_op: Option<Span>,
    /// Root of a collective, peer of a p2p or one-sided call.
    pub root: Option<Span>,
    /// Stack pointer at the function's entry.
    pub stack_pointer: Span,
}

/// Places of the fields in the record of an exported function's entry.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ApiEntrySpans {
    pub function: ApiFunction,
    pub stack_pointer: Span,
}

/// Places of the fields in the record of an exported function's return.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ApiReturnSpans {
    pub function: ApiFunction,
    /// `ncclResult_t`.
    pub result: Span,
    pub stack_pointer: Span,
}

/// Places of the fields in the record of a profiler hook of a proxy's step.
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
    /// `ncclProxyConnection.send`: 1 where this rank sends; read where the state does not tell the direction.
    pub sends: Option<Span>,
    /// `ncclProxyConnection.sameProcess`: 0 where another process posted the op; with `sends`, 2.18 and
    /// later.
    pub same_process: Option<Span>,
    /// `ncclProxySubArgs.transSize`: bytes of the message, once its size is known; of [`StepHook::State`],
    /// 2.23 and later, and in 2.23 of [`StepHook::Stop`].
    pub size: Option<Span>,
    /// Owner of the `transSize`: the `ncclProxyArgs`, and the op's index in it; read where it is a sum over
    /// messages (2.23 to 2.26).
    pub summed: Option<[Span; 2]>,
    /// NCCL adds a send to the sum only after it has reported the send (2.23).
    #[serde(default)]
    pub adds_later: bool,
    /// Sizes of the messages in the slots, where they stand nowhere else (2.20 to 2.22); only of sends.
    pub slots: Option<SlotSizesSpans>,
}

/// `ncclRecvMem.connFifo` of a send's connection.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SlotSizesSpans {
    /// All entries of the FIFO.
    pub entries: Span,
    /// Bytes of an entry; `size_at` is the offset of the size in an entry.
    pub entry_bytes: u16,
    pub size_at: u16,
    pub size_bytes: u16,
    /// `ncclProxySubArgs.base`: FIFO step of the connection at which the op begins.
    pub base: Span,
}

/// Places of the fields in the record of a send's slot that is given back. The same thread makes it just
/// before [`StepHook::Record`] tells that the message was sent (2.16 to 2.19).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SendSizeSpans {
    /// Entry of `ncclRecvMem.sizesFifo`: the bytes that the network was given.
    pub bytes: Span,
}

/// Profiler hook of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepHook {
    /// The message enters a state.
    State,
    /// The message is done.
    Stop,
    /// The message enters a state or is done, by the state's number: `ncclProxyProfileState`, up to 2.22.
    Record,
}

/// Places of the fields in the last record of a walked plan, which is the probe's own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanSpans {
    pub comm: CommunicatorSpans,
    /// Address of the `ncclKernelPlan`.
    pub plan: Span,
    /// The probe is in CUDA's callback (`hostStreamPlanCallback`), which posts the plan.
    pub in_callback: bool,
    /// `ncclKernelPlan.persistent`: the plan is part of a CUDA graph.
    pub persistent: Span,
    /// `ncclKernelPlan.isHostCbEnq` (2.24 and later), or `ncclComm.persistentRefs`: not 0 if the callback
    /// posts the plan.
    pub by_callback: Span,
    /// `ncclKernelPlan.channelMask`.
    pub channel_mask: Span,
    /// `ncclKernelPlan.workBytes`.
    pub work_bytes: Span,
    /// Nodes found of each list, in the order of [`PlanList`].
    pub nodes: Vec<(PlanList, Span)>,
    /// Arguments of a launch without proxy ops; in the launch's own probe, in versions that have such
    /// launches.
    #[serde(default)]
    pub launch: Option<LaunchSpans>,
    /// The probe is in `ncclLaunchRma`, which takes one-sided calls out of their plan: the plan's launch
    /// comes next.
    #[serde(default)]
    pub one_sided: bool,
}

/// Places of what the plan of a launch without proxy ops says. In other launches the bytes mean nothing, and
/// in the short way they are not there.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LaunchSpans {
    /// `ncclKernelPlan.isSymColl`, `isCeColl` and `isRma`.
    pub flags: [Option<Span>; 3],
    /// `ncclKernelPlan.kernelFn`, and `reclaimer.fn`, which is a function of the library, too.
    pub kernel: Span,
    pub reclaim: Span,
    /// `ncclKernelPlan.kernelArgsSize`.
    pub args_size: Span,
    /// `ncclSymkDevWorkArgs.nMaxChannels`; 2.28 and later.
    pub n_channels: Option<Span>,
    /// Of a kernel on symmetric memory the last, else the first bytes of the arguments.
    pub args: Span,
    /// One-sided calls are seen by a probe of their own.
    pub one_sided_elsewhere: bool,
}

/// Bytes of [`LaunchSpans::args`].
pub const LAUNCH_ARGS: u16 = 64;

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
    /// `ncclKernelPlan.rmaTaskQueueProxy`.
    OneSidedByProxy,
    /// `ncclKernelPlan.rmaTaskQueueCe`.
    OneSidedByCopy,
}

impl PlanList {
    /// Returns NCCL's name of what holds the list.
    pub fn name(self) -> &'static str {
        match self {
            Self::CollTasks => "collTaskQueue",
            Self::Works => "workQueue",
            Self::P2pTasks => "p2pTaskQueue",
            Self::Batches => "kernelArgs",
            Self::OpCounts => "opCounts",
            Self::ProxyOps => "proxyOpQueue",
            Self::OneSidedByProxy => "rmaTaskQueueProxy",
            Self::OneSidedByCopy => "rmaTaskQueueCe",
        }
    }
}

/// Places of the fields in the record of a node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PlanNodeSpans {
    pub list: PlanList,
    pub address: Span,
    /// The node's bytes, as far as they are needed.
    pub bytes: Span,
    /// Task of a proxy op.
    pub task: Option<TaskSpans>,
    /// First ranks that a one-sided call waits for.
    #[serde(default)]
    pub ranks: Option<Span>,
}

/// Places of the fields in the record of a communicator's channel. A rank of -1: there is none.
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

/// Places of the fields in a record of several connectors of a channel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectorsSpans {
    pub channel: Span,
    pub connectors: Vec<ConnectorSpans>,
}

/// Places of a connector's fields, among those of [`ConnectorsSpans`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ConnectorSpans {
    pub sends: bool,
    pub connection_index: i32,
    pub peer: Span,
    /// Address of the `ncclProxyConnection`; this and the fields below are as in [`ProxyPeerSpans`].
    pub connection: Span,
    pub proxy_progress: Span,
    pub owner: Option<ProxyOwnerSpans>,
    pub transport: Span,
}

/// Purpose of a probe, or of a part of a probe that walks.
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
    Graph(GraphSpans),
    /// The call stack of a thread at another probe's hit: [`ncclflow_common::StackHead`].
    Stack,
}
