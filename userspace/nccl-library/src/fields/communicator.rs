//! `ncclComm`, and what communicators that were split from each other share (src/include/comm.h).

use super::field_ref::fields;

fields! {
    comm = "ncclComm", lost "everything about communicators" {
        /// `NCCL_MAGIC` at the beginning of the struct.
        START_MAGIC = "startMagic" since "2.21";
        /// `NCCL_MAGIC` at its end.
        END_MAGIC = "endMagic" since "2.21";
        /// First communicator of the process; its own points to itself.
        INTRA_COMM_0 = "intraComm0";
        /// Next communicator of the process.
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
        /// Count of collectives that were launched; from 2.18 on [`shared_resources::COLL_OP_COUNT`] counts
        /// them.
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
        /// Pointer to the [`crate::fields::bootstrap_state`], set from the beginning of the set-up.
        BOOTSTRAP = "bootstrap";
        /// `ncclResult_t` of the set-up. Until that is done it is `ncclInProgress`; for splits, and up to
        /// 2.23 for all, `ncclInternalError` (src/init.cc).
        INIT_STATE = "initState";
        /// `ncclResult_t`.
        ASYNC_RESULT = "asyncResult";
        /// Pointer to a `uint32_t`.
        ABORT_FLAG = "abortFlag";
        FINALIZE_CALLED = "finalizeCalled";
        DESTROY_FLAG = "destroyFlag" since "2.22";
        REVOKED_FLAG = "revokedFlag" since "2.28.7";
        /// Name that the program gave.
        NAME = "config.commName" since "2.27";
        /// Pointer to a `uint32_t` for each channel: the amount of work that kernels are through with
        /// (src/enqueue.cc, waitWorkFifoAvailable). From 2.26 on the host keeps no word that the GPU writes.
        WORK_CONSUMED = "workFifoConsumed" since "2.22", "workFifoDone" until "2.21";
    }

    shared_resources = "ncclSharedResources", lost "op counters that split communicators share" {
        /// Count of collectives that were launched: see [`crate::fields::counts_always`] for which.
        COLL_OP_COUNT = "collOpCount" since "2.18";
        /// Count of sends and receives that were launched, a `uint64_t` for each channel.
        P2P_OP_COUNT = "p2pOpCount" since "2.18";
    }

    peer_info = "ncclPeerInfo", lost "the host and the process of each rank" {
        RANK = "rank";
        /// Hash of the host's name and its boot ID, plus `commHash` (src/misc/utils.cc, getHostHash;
        /// src/init.cc, fillInfo).
        HOST_HASH = "hostHash";
        /// Hash of the process's PID and its PID namespace, plus `commHash` (getPidHash).
        PID_HASH = "pidHash";
    }
}
