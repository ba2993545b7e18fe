//! A kernel launch: the plan, its tasks and its work (src/include/comm.h).

use super::field_ref::fields;

fields! {
    kernel_plan = "ncclKernelPlan", lost "whole plans at one probe" {
        COMM = "comm";
        /// The next plan of the communicator's queue.
        NEXT = "next";
        /// True if the plan is part of a CUDA graph.
        PERSISTENT = "persistent";
        /// True if CUDA's callback thread posts the plan's ops.
        BY_CALLBACK = "isHostCbEnq" since "2.24";
        CHANNEL_MASK = "channelMask";
        WORK_BYTES = "workBytes" since "2.22";
        /// Pointer to the `ncclDevKernelArgs`, with the batches behind them.
        KERNEL_ARGS = "kernelArgs" since "2.22";
        N_WORK_BATCHES = "nWorkBatches" since "2.22";
        COLL_TASKS = "collTaskQueue.head" since "2.23";
        P2P_TASKS = "p2pTaskQueue.head" since "2.23";
        WORKS = "workQueue.head" since "2.22";
        PROXY_OPS = "proxyOpQueue.head" since "2.22";
        /// Work of the plan on each channel.
        CHANNELS = "channels" until "2.21";
        /// Pointer to the last `ncclWorkList` of the first channel.
        CHANNEL_LAST_WORK = "channels.workQueue.tail" until "2.21";
        /// Number of elements of the first channel's last work; in a union with `nWorkElem`.
        CHANNEL_LAST_ELEMENTS = "channels.p2pTailElem" until "2.21";
    }

    /// `ncclTaskColl`; up to 2.21 in src/include/info.h, and of other use.
    task_coll = "ncclTaskColl", lost "collectives of a plan that need no proxy" {
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

    task_p2p = "ncclTaskP2p", lost "sends and receives of a plan that need no proxy" {
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

    /// `ncclWorkList`: a node of the queue of work.
    work_list = "ncclWorkList", lost "the device work of a plan" {
        NEXT = "next";
        /// `ncclDevWorkType`. The work is behind the node.
        WORK_TYPE = "workType" since "2.22";
        /// Bytes of the work.
        SIZE = "size" since "2.22";
        /// The `ncclWork` itself.
        WORK = "work" until "2.21";
    }
}
