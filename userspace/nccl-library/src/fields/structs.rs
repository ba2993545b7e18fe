//! The structs and their fields.

use super::field_ref::fields;

fields! {
    Tracing ring_algorithm = "RingAlgorithm", lost "exact sizes of ring steps that were registered" {}
    /// A channel's graphs and its connections (src/include/comm.h; the graphs: src/include/device.h).
    Both channel = "ncclChannel", lost "the neighbours in ring, tree and the other graphs" {
        ID = "id";
        /// Pointer to the `ncclChannelPeer` of each rank: see [`crate::fields::peers_are_pointers`].
        PEERS = "peers";
        RING_PREV = "ring.prev";
        RING_NEXT = "ring.next";
        /// Position of this rank in the ring.
        RING_INDEX = "ring.index";
        /// Pointer to the ranks along the ring, which begin with this one.
        RING_USER_RANKS = "ring.userRanks";
        TREE_UP = "tree.up";
        /// Ranks below this one, up to three; -1: nobody.
        TREE_DOWN = "tree.down";
        COLLNET_CHAIN_UP = "collnetChain.up";
        COLLNET_DIRECT_OUT = "collnetDirect.out";
        COLLNET_DIRECT_N_HEADS = "collnetDirect.nHeads";
        COLLNET_DIRECT_HEAD_RANK = "collnetDirect.headRank";
        NVLS_OUT = "nvls.out" since "2.17";
        NVLS_N_HEADS = "nvls.nHeads" since "2.17";
        NVLS_HEAD_RANK = "nvls.headRank" since "2.17";
        NVLS_TREE_UP = "nvls.treeUp" since "2.18";
        NVLS_TREE_DOWN = "nvls.treeDown" since "2.18";
        /// Amount of work that was put into the FIFO of work: see [`super::comm::WORK_CONSUMED`].
        WORK_PRODUCED = "workFifoProduced" since "2.22", "workFifoSent" until "2.21";
    }

    Both channel_peer = "ncclChannelPeer", lost "the transport to a peer" {
        /// `ncclConnector[NCCL_MAX_CONNS]`.
        SEND = "send";
        RECV = "recv";
    }

    /// Communicator (src/include/comm.h).
    Both comm = "ncclComm", lost "everything about communicators" {
        /// `NCCL_MAGIC` at the beginning of the struct.
        START_MAGIC = "startMagic" since "2.21";
        /// `NCCL_MAGIC` at its end.
        END_MAGIC = "endMagic" since "2.21";
        INTRA_COMM_0 = "intraComm0";
        INTRA_NEXT = "intraNext";
        /// Hash that is the same on all ranks of a communicator.
        HASH = "commHash" since "2.18";
        RANK = "rank";
        N_RANKS = "nRanks";
        NODE = "node";
        N_NODES = "nNodes";
        LOCAL_RANK = "localRank";
        CUDA_DEV = "cudaDev";
        NVML_DEV = "nvmlDev" since "2.18.3";
        /// PCI address of the GPU as a number: domain, bus, device and function in hex digits, one after the
        /// other (src/misc/utils.cc, busIdToInt64).
        BUS_ID = "busId";
        /// `ncclChannel[MAXCHANNELS]`.
        CHANNELS = "channels";
        /// Bytes of the FIFO of work.
        WORK_FIFO_BYTES = "workFifoBytes" since "2.22";
        /// Not 0 if the FIFO of work is in the GPU's memory.
        WORK_FIFO_GDR = "workFifoBufGdrHandle" since "2.22";
        /// Pointer; not 0 if the communicator uses NVLink SHARP.
        NVLS_RESOURCES = "nvlsResources" since "2.17";
        N_CHANNELS = "nChannels";
        NVLS_CHANNELS = "nvlsChannels" since "2.17";
        /// Sizes of a connection's buffers in bytes, an `int` for each protocol.
        BUFFER_SIZES = "buffSizes";
        /// Pointer to the `ncclProxyState`; in 2.16 and 2.17 the struct itself.
        PROXY_STATE = "proxyState";
        /// Pointer to the `ncclSharedResources`.
        SHARED_RESOURCES = "sharedRes" since "2.18";
        /// Count of API calls; NCCL's own log lines have it.
        OP_COUNT = "opCount";
        /// Count of collectives launched; from 2.18 on those that share resources count
        /// together: [`crate::fields::shared_resources::COLL_OP_COUNT`].
        COLL_OP_COUNT = "collOpCount" except "2.18" to "2.23";
        /// Count of collectives that were launched, a `uint64_t` for each function: see
        /// [`crate::fields::counts_always`].
        SEQ_NUMBER = "seqNumber" since "2.23";
        /// Count of CUDA graphs that hold plans of this communicator.
        PERSISTENT_REFS = "persistentRefs" until "2.25";
        /// The last of the plans that are being made.
        PLAN_QUEUE_TAIL = "planQueue.tail" until "2.21";
        /// The first `ncclWorkList` of a collective that is not yet part of a plan.
        WAITING_WORK = "planner.collWorkQueue.head" since "2.22";
        P2P_SCHED_GROUP_SIZE = "p2pSchedGroupSize" since "2.28.7";
        /// Count of API calls that are not yet part of a plan: collectives (src/include/comm.h,
        /// ncclKernelPlanner; ncclTasks up to 2.21).
        WAITING_COLLECTIVES = "planner.nTasksColl" since "2.22", "tasks.nTasksColl" until "2.21";
        /// Count of sends and receives that are not yet part of a plan.
        WAITING_P2P = "planner.nTasksP2p" since "2.22", "tasks.nTasksP2p" until "2.21";
        /// Count of broadcasts, planned together, that are not yet part of a plan.
        WAITING_BROADCASTS = "planner.nTasksBcast" since "2.29";
        /// Pointer to one struct for each peer: two `bool`, a queue of sends, a queue of receives and, where
        /// there is `nTasksBcast`, one of broadcasts.
        WAITING_PEERS = "planner.peers" since "2.22", "tasks.peers" until "2.21";
        /// Queue of plans (`ncclIntruQueue`), as large as any other queue.
        PLAN_QUEUE = "planner.planQueue" since "2.22", "planQueue" until "2.21";
        /// The first plan that is not launched yet.
        UNLAUNCHED_PLANS = "planner.unlaunchedPlansHead" since "2.22", "unlaunchedPlansHead" until "2.21";
        /// The next communicator of the thread's group, one for each kind of task from 2.27 on; 1 while the
        /// communicator is in no group (src/include/group.h, ncclGroupCommLeave).
        GROUP_NEXT = "groupNext";
        /// Job of a call that goes on in another thread.
        GROUP_JOB = "groupJob" since "2.19";
        /// Pointer to an `ncclPeerInfo` for each rank.
        PEER_INFO = "peerInfo";
        /// Pointer to the `ncclNet_t`: the network plugin, built in or loaded. A pointer to its name is its
        /// first field in all versions (src/include/nccl_net.h).
        NET = "ncclNet";
        /// Pointer to the [`super::topo_system`].
        TOPOLOGY = "topo";
        /// Pointer to the [`crate::fields::bootstrap_state`], set from the beginning of the set-up.
        BOOTSTRAP = "bootstrap";
        /// `ncclResult_t` of the set-up. Until that is done it is `ncclInProgress`; for splits, and up to
        /// 2.23 for all, `ncclInternalError` (src/init.cc).
        INIT_STATE = "initState";
        /// `ncclResult_t`.
        ASYNC_RESULT = "asyncResult";
        /// Pointer to a `uint32_t`.
        ABORT_FLAG = "abortFlag";
        /// That of the communicator that is being split off; 0 where there is none, or it shares this one's.
        CHILD_ABORT_FLAG = "childAbortFlag" since "2.18";
        /// Not 0 if those that are split off share the resources.
        SPLIT_SHARE = "config.splitShare" since "2.18";
        FINALIZE_CALLED = "finalizeCalled";
        DESTROY_FLAG = "destroyFlag" since "2.22";
        REVOKED_FLAG = "revokedFlag" since "2.28.7";
        /// Name that the program gave.
        NAME = "config.commName" since "2.27";
        /// Pointer to an array of pointers to [`crate::fields::rma_context`], and their number.
        RMA_CONTEXTS = "rmaState.rmaProxyState.rmaProxyCtxs" since "2.29";
        RMA_CONTEXT_COUNT = "rmaState.rmaProxyState.rmaProxyCtxCount" since "2.29";
        /// Count of signals that each rank has for each other one; before, it is 1.
        RMA_SIGNALS = "config.numRmaSig" since "2.31";
        /// Pointer to a `uint32_t` for each channel: the amount of work that kernels are through with
        /// (src/enqueue.cc, waitWorkFifoAvailable). From 2.26 on the host keeps no word that the GPU writes.
        WORK_CONSUMED = "workFifoConsumed" since "2.22", "workFifoDone" until "2.21";
    }

    Both config = "ncclConfig_t", lost "the name and the settings of a communicator" {}
    /// `ncclConnFifo` (src/include/device.h).
    Both conn_fifo = "ncclConnFifo", lost "the measured sizes of messages up to 2.22" {
        /// Bytes of the message in the slot.
        SIZE = "size" since "2.20";
    }

    Both conn_info = "ncclConnInfo", lost "the state of a connection" {}
    /// `ncclConnector` (src/include/device.h), with its `ncclProxyConnector` (src/include/proxy.h).
    Both connector = "ncclConnector", lost "the transport to a peer, and whether it has a proxy" {
        CONNECTED = "connected";
        /// Bits: 2, the receiver's GPU reads the sender's memory (`NCCL_P2P_READ`).
        FLAGS = "conn.flags" since "2.17";
        /// Pointer into the transport: see [`transport`].
        TRANSPORT_COMM = "transportComm";
        /// Pointer to the `ncclProxyConnection`, in the process whose proxy serves the connection.
        PROXY_CONNECTION = "proxyConn.connection";
        /// Pointer that is not 0 if the connection has a proxy.
        PROXY_PROGRESS = "proxyConn.proxyProgress" since "2.19";
        /// 1 if the proxy is a thread of this process.
        PROXY_SAME_PROCESS = "proxyConn.sameProcess" since "2.18";
        /// Rank of the proxy in the communicator whose resources are shared.
        PROXY_TOP_RANK = "proxyConn.tpRank" since "2.18";
        /// Rank of the proxy in the communicator.
        PROXY_RANK = "proxyConn.rank" except "2.18" to "2.22";
    }

    Tracing dev_red_op_full = "ncclDevRedOpFull", lost "reduction operations as the device sees them" {}
    Tracing dev_kernel_args = "ncclDevKernelArgs", lost "the batches of sends and receives of a plan" {}
    Tracing dev_work_batch = "ncclDevWorkBatch", lost "the batches of sends and receives of a plan" {
        NEXT_JUMP = "nextJump" since "2.22";
        NEXT_EXTENDS = "nextExtends" since "2.22";
        WORK_TYPE = "workType" since "2.22";
        OFFSET_BASE = "offsetBase" since "2.22";
        OFFSET_BITS = "offsetBitset" since "2.22";
    }

    /// Device work, with that of the next structs: the arguments of a plan's kernel (src/include/device.h).
    Tracing dev_work_coll = "ncclDevWorkColl",
    lost "the share of each channel in a collective that needs no proxy" {
        CHANNEL_LO = "channelLo" since "2.22";
        CHANNEL_HI = "channelHi" since "2.22";
        COUNT_LO = "cbd.countLo" since "2.22";
        COUNT_MID = "cbd.countMid" since "2.22";
        COUNT_HI = "cbd.countHi" since "2.22";
        CHUNK_GRAINS_LO = "cbd.chunkGrainsLo" since "2.22";
        CHUNK_GRAINS_MID = "cbd.chunkGrainsMid" since "2.22";
        CHUNK_GRAINS_HI = "cbd.chunkGrainsHi" since "2.22";
        COLLNET_COUNT = "collnet.count" since "2.22";
        COLLNET_CHUNK_COUNT = "collnet.chunkCount" since "2.22";
    }

    Tracing dev_work_p2p = "ncclDevWorkP2p",
    lost "the share of each channel in a send or receive that needs no proxy" {
        N_P2P_CHANNELS = "nP2pChannels" since "2.22";
        CHANNEL_BASE = "channelBase" since "2.22";
        RECV_RANK = "recvRank" since "2.22";
        SEND_RANK = "sendRank" since "2.22";
        RECV_BYTES = "recvBytes" since "2.22";
        SEND_BYTES = "sendBytes" since "2.22";
        RECV_N_CHANNELS = "nRecvChannels" since "2.22";
        SEND_N_CHANNELS = "nSendChannels" since "2.22";
        /// Payload bytes of a chunk, as an 8-bit floating point number.
        RECV_CHUNK_SIZE = "recvChunkSize_u32fp8" since "2.22";
        SEND_CHUNK_SIZE = "sendChunkSize_u32fp8" since "2.22";
        RECV_IS_LL = "recvProtoLL" since "2.22";
        SEND_IS_LL = "sendProtoLL" since "2.22";
        /// Flag of registered buffers: one at first; later one each for network and IPC.
        RECV_IS_REGISTERED = "recvNetReg" since "2.24", "recvRegistered" since "2.22" until "2.23";
        SEND_IS_REGISTERED = "sendNetReg" since "2.24", "sendRegistered" since "2.22" until "2.23";
    }

    Tracing direct = "ncclDirect", lost "the neighbours in the CollNet direct graph" {}
    /// `ncclInfo`: the argument of `ncclEnqueueCheck` (src/include/info.h).
    Tracing info = "ncclInfo", lost "the calls of the API" {
        /// `ncclFunc_t`.
        COLL = "coll";
        /// Pointer to the name of the API's function.
        OP_NAME = "opName";
        SEND_BUFFER = "sendbuff";
        RECV_BUFFER = "recvbuff";
        COUNT = "count";
        DATATYPE = "datatype";
        REDUCTION_OP = "op";
        ROOT = "root";
        COMM = "comm";
        STREAM = "stream";
    }

    Tracing nvls = "ncclNvls", lost "the neighbours in the NVLink SHARP graph" {}
    Both peer_info = "ncclPeerInfo", lost "the host and the process of each rank" {
        RANK = "rank";
        /// Hash of the host's name and its boot ID, plus `commHash` (src/misc/utils.cc, getHostHash;
        /// src/init.cc, fillInfo).
        HOST_HASH = "hostHash";
        /// Hash of the process's PID and its PID namespace, plus `commHash` (getPidHash).
        PID_HASH = "pidHash";
    }

    /// `ncclProxyArgs`: ops of several connections that are taken together.
    Both proxy_args = "ncclProxyArgs", lost "the ops in flight, and the times of steps" {
        /// `ncclProxySubArgs[NCCL_PROXY_MAX_SUBS]`.
        SUBS = "subs";
        N_SUBS = "nsubs";
        OP_COUNT = "opCount";
        /// `ncclProxyOpState`.
        STATE = "state";
        NEXT = "next";
        /// The next op of the same connection.
        NEXT_PEER = "nextPeer";
        PATTERN = "pattern";
        PROTOCOL = "protocol";
        COLL = "coll" since "2.20";
        CHUNK_STEPS = "chunkSteps";
        SLICE_STEPS = "sliceSteps";
    }

    Both proxy_connection = "ncclProxyConnection", lost "the direction and the transport of a step" {
        /// 1 if this rank sends.
        SEND = "send";
        /// 0 if another process posts the ops.
        SAME_PROCESS = "sameProcess" since "2.18";
        /// `TRANSPORT_NET` and the like.
        TRANSPORT = "transport";
        /// Pointer to the transport's state of the connection: [`super::send_net_resources`].
        TRANSPORT_RESOURCES = "transportResources";
    }

    Both proxy_connector = "ncclProxyConnector", lost "whether a connection has a proxy" {}
    Tracing proxy_event_handle = "ncclProxyEventHandle", lost "the profiler's handle of an op" {}
    /// Description of an op that the proxy is given (src/include/proxy.h).
    Tracing proxy_op = "ncclProxyOp", lost "the planned and the posted proxy ops" {
        OP_COUNT = "opCount";
        CHANNEL_ID = "channelId";
        /// Number of FIFO steps.
        N_STEPS = "nsteps";
        N_BYTES = "nbytes";
        CHUNK_SIZE = "chunkSize";
        SLICE_STEPS = "sliceSteps";
        CHUNK_STEPS = "chunkSteps";
        /// The root, or the peer of a send or receive.
        ROOT = "root";
        DATATYPE = "dtype";
        REDUCTION_OP = "redOp";
        /// `ncclPattern_t`.
        PATTERN = "pattern";
        PROTOCOL = "protocol";
        COLL = "coll" since "2.20";
        COLL_API = "collAPI" since "2.28";
        ALGORITHM = "algorithm" since "2.24";
        /// True if the op's buffers are registered.
        REGISTERED = "reg" since "2.20";
        /// Bytes that the channel carries.
        CHANNEL_SIZE = "channelSize" since "2.24";
        LOOP_OFFSET = "loopOffset" since "2.24";
        BROADCAST_SEND_SLICES = "specifics.bcast.sendSlices" since "2.29";
        BROADCAST_RECV_SLICES = "specifics.bcast.recvSlices" since "2.29";
        /// Pointer to the `ncclTaskColl` or `ncclTaskP2p`, a union.
        TASK = "task" since "2.23";
        /// The next op in the plan's queue.
        QUEUE_NEXT = "enqNext";
        WORK_COUNTER = "workCounter" since "2.26";
    }

    Tracing proxy_op_specifics = "ncclProxyOpSpecifics", lost "the steps of grouped broadcasts" {}
    Tracing proxy_ops = "ncclProxyOps", lost "ops queued but not yet taken by the proxy thread" {}
    Tracing proxy_ops_pool = "ncclProxyOpsPool", lost "ops queued but not yet taken by the proxy thread" {}
    Both proxy_progress_state = "ncclProxyProgressState", lost "the ops in flight" {}
    /// The proxy's own state: the ops that it works on, and their connections (src/include/proxy.h).
    Both proxy_state = "ncclProxyState", lost "the ops in flight" {
        /// The first `ncclProxyArgs` in flight.
        ACTIVE = "progressState.active";
        /// `pthread_t` of the thread that works on them; from 2.28 on in a `std::thread`.
        THREAD = "progressState.thread";
        /// `ncclResult_t`.
        ASYNC_RESULT = "asyncResult" since "2.19";
    }

    /// `ncclProxySubArgs`: the op of one connection.
    Both proxy_sub_args = "ncclProxySubArgs", lost "the ops in flight, and the times of steps" {
        /// Pointer to the `ncclProxyConnection`.
        CONNECTION = "connection";
        CHANNEL_ID = "channelId";
        /// Rank of the peer; up to 2.22 of another meaning.
        PEER = "peer";
        RANK = "rank" since "2.23";
        /// Number of FIFO steps.
        N_STEPS = "nsteps";
        /// FIFO step of the connection at which the op begins.
        BASE = "base";
        POSTED = "posted";
        RECEIVED = "received";
        FLUSHED = "flushed";
        TRANSMITTED = "transmitted";
        DONE = "done";
        /// Not 0 if the op's buffer is registered with the network.
        REGISTERED = "reg" since "2.20";
        /// Not 0 once a receiver's GPU has said that its registered buffer may be written.
        BUFFER_READY = "regBufferReady" since "2.24";
        /// Bytes of the message, or of all so far: see
        /// [`NameTables::step_size_is_per_message`](crate::nccl::NameTables::step_size_is_per_message).
        TRANSFER_SIZE = "transSize" since "2.23";
    }

    /// Memory through which the GPU and the proxy tell each other how far they are (src/include/comm.h).
    Both recv_mem = "ncclRecvMem", lost "the measured sizes of messages up to 2.22" {
        /// Count of FIFO steps that the sender's GPU has filled.
        TAIL = "tail";
        /// An [`conn_fifo`] for each slot.
        CONN_FIFO = "connFifo" since "2.20";
        /// Bytes of the message in each slot, of 32 bits.
        SIZES_FIFO = "sizesFifo" until "2.19";
    }

    Tracing ring = "ncclRing", lost "the neighbours in the ring" {}

    /// `ncclTaskColl`; up to 2.21 in src/include/info.h, and of other use.
    Tracing task_coll = "ncclTaskColl", lost "collectives of a plan that need no proxy" {
        NEXT = "next" except "2.20" to "2.21";
        FUNC = "func" except "2.20" to "2.21";
        SEND_BUFFER = "sendbuff" except "2.20" to "2.21";
        RECV_BUFFER = "recvbuff" except "2.20" to "2.21";
        COUNT = "count" except "2.20" to "2.21";
        ROOT = "root" except "2.20" to "2.21";
        DATATYPE = "datatype" except "2.20" to "2.21";
        HOST_OP = "opHost" since "2.22";
        DEVICE_OP = "opDev.op" since "2.22";
        CHUNK_STEPS = "chunkSteps" except "2.20" to "2.21";
        SLICE_STEPS = "sliceSteps" except "2.20" to "2.21";
        ALGORITHM = "algorithm" since "2.22";
        PROTOCOL = "protocol" since "2.22";
        IS_COLLNET = "isCollnet" since "2.22";
        REG_BUFFER_TYPE = "regBufType" since "2.22";
    }

    Both task_p2p = "ncclTaskP2p", lost "sends and receives of a plan that need no proxy" {
        NEXT = "next";
        FUNC = "func" since "2.23";
        COLL_API = "collAPI" since "2.28";
        BUFFER = "buff";
        /// Rank of the peer.
        ROOT = "root" since "2.23";
        BYTES = "bytes";
        /// Channels that the call is split over.
        N_CHANNELS = "nChannels" since "2.27";
    }

    /// `{ char name[8]; …; ncclTransportComm send; ncclTransportComm recv; }` (src/include/transport.h).
    Tracing transport = "ncclTransport", lost "the name of a transport" {
        NAME = "name";
        SEND = "send";
        RECV = "recv";
    }

    Tracing transport_comm = "ncclTransportComm", lost "the name of a transport" {
        /// Pointer that is not 0 if connections have a proxy.
        PROXY_PROGRESS = "proxyProgress";
    }

    Tracing tree = "ncclTree", lost "the neighbours in the trees" {}
    /// State that the network transport keeps of a connection (src/transport/net.cc).
    Both send_net_resources = "sendNetResources", lost "the measured sizes of messages up to 2.22" {
        /// Count of FIFO steps that were begun.
        STEP = "step" since "2.19";
        RECV_MEM = "recvMem" since "2.19";
        NET_DEV = "netDev" since "2.19";
        /// Rank that sends, in the communicator whose resources are shared; and the peer.
        TOP_RANK = "tpRank" since "2.19";
        TOP_REMOTE_RANK = "tpRemoteRank" since "2.19";
        /// A [`super::connect_map_mem`] of each kind.
        MEMORIES = "map.mems" since "2.19";
    }

    /// `ncclWorkElem`: a collective's.
    Tracing work_elem = "ncclWorkElem", lost "the share of each channel in a collective that needs no proxy" {
        WORK_COUNT = "workCount" since "2.20" until "2.21";
        CHUNK_COUNT = "chunkCount" since "2.20" until "2.21";
        LAST_CHUNK_COUNT = "lastChunkCount" since "2.20" until "2.21";
    }

    /// `ncclWorkList`: a node of the queue of work.
    Tracing work_list = "ncclWorkList", lost "the device work of a plan" {
        NEXT = "next";
        /// `ncclDevWorkType`. The work is behind the node.
        WORK_TYPE = "workType" since "2.22";
        /// Bytes of the work.
        SIZE = "size" since "2.22";
        /// The `ncclWork` itself.
        WORK = "work" until "2.21";
    }

    /// As [`recv_mem`], the other way.
    Dump send_mem = "ncclSendMem" {
        /// Count of FIFO steps that the receiver's GPU has consumed.
        HEAD = "head";
    }

    /// As [`send_net_resources`], of the receiver.
    Dump recv_net_resources = "recvNetResources" {
        /// Count of FIFO steps that were begun.
        STEP = "step" since "2.19";
        /// Pointer to the `ncclSendMem`.
        SEND_MEM = "sendMem" since "2.19";
        RECV_MEM = "recvMem" since "2.19";
        NET_DEV = "netDev" since "2.19";
        MEMORIES = "map.mems" since "2.19";
    }

    Dump connect_map = "connectMap" {}
    /// Memory of a network connection (src/transport/net.cc).
    Dump connect_map_mem = "connectMapMem" {
        GPU = "gpuPtr" since "2.19";
        CPU = "cpuPtr" since "2.19";
        SIZE = "size" since "2.19";
    }

    /// State that NCCL keeps while a communicator's ranks make their first connections (src/bootstrap.cc).
    Dump bootstrap_state = "bootstrapState" {
        RANK = "rank";
        N_RANKS = "nranks";
        /// State of the socket to the next rank of the ring (`ncclSocketState`, src/include/socket.h): 0
        /// until the root has told its address, 6 and 7 once it is connected.
        NEXT_STATE = "ring.socket.send.state" since "2.23", "ringSendSocket.state" until "2.22";
        /// Pointer to the addresses of all ranks; not 0 once both neighbours in the ring are connected.
        ADDRESSES = "peerP2pAddresses" since "2.23", "peerCommAddresses" until "2.22";
    }

    /// A process, as NCCL's reliability service knows it: see [`super::ras`].
    Dump ras_peer = "rasPeerInfo" {
        /// An `ncclSocketAddress`.
        ADDRESS = "addr" since "2.24";
        /// PID in the process's own namespace.
        PID = "pid" since "2.24";
        /// Bit mask of GPUs, as NVML numbers them on the host.
        NVML_DEVS = "nvmlDevs" since "2.24";
        /// Hashes as in `ncclPeerInfo`, without `commHash` in them.
        HOST_HASH = "hostHash" since "2.26";
        PID_HASH = "pidHash" since "2.26";
    }

    Nobody work = "ncclWork" {
        /// `ncclWorkType`.
        TYPE = "header.type" until "2.21";
        COLLECTIVES = "elems" until "2.21";
        REGISTERED_COLLECTIVES = "regElems" until "2.21";
        SENDS_AND_RECEIVES = "p2pElems" until "2.21";
    }

    /// `ncclWorkElemReg`, whose first member is an `ncclWorkElem`.
    Nobody work_elem_reg = "ncclWorkElemReg" {}
    Nobody work_elem_p2p = "ncclWorkElemP2p" {
        PEER = "peer" until "2.21";
        COUNT_HIGH = "countHi32" until "2.21";
        COUNT_LOW = "countLo32" until "2.21";
    }
}
