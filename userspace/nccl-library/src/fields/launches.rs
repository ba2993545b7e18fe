//! The structs of a launch: the plan, and the arguments of launches that have neither proxy ops nor tasks.

use super::field_ref::fields;

fields! {
    /// A kernel launch; its tasks and its work are below (src/include/comm.h).
    Both kernel_plan = "ncclKernelPlan", lost "whole plans at one probe" {
        COMM = "comm";
        /// The next plan of the communicator's queue.
        NEXT = "next";
        /// True if the plan is part of a CUDA graph.
        PERSISTENT = "persistent";
        /// True if CUDA's callback thread posts the plan's ops.
        BY_CALLBACK = "isHostCbEnq" since "2.24";
        /// Function that frees the plan, one of the library's own (`reclaimPlan`).
        RECLAIM = "reclaimer.fn";
        /// True if the plan is a kernel on symmetric memory, copies by copy engines, or one-sided calls. Such
        /// a plan has no proxy ops, and neither tasks nor work in the queues below.
        IS_SYMMETRIC = "isSymColl" since "2.27";
        IS_COPY_ENGINE = "isCeColl" since "2.28";
        IS_RMA = "isRma" since "2.29";
        /// Host function of the kernel.
        KERNEL = "kernelFn";
        CHANNEL_MASK = "channelMask";
        WORK_BYTES = "workBytes" since "2.22";
        /// Pointer to the `ncclDevKernelArgs`, with the batches behind them; in a union with the pointers to
        /// [`sym_dev_args`], [`symk_dev_work_args`], [`ce_coll_args`] and [`rma_args`].
        KERNEL_ARGS = "kernelArgs" since "2.22";
        /// Bytes of the kernel's arguments.
        KERNEL_ARGS_SIZE = "kernelArgsSize" since "2.22";
        N_WORK_BATCHES = "nWorkBatches" since "2.22";
        COLL_TASKS = "collTaskQueue.head" since "2.23";
        P2P_TASKS = "p2pTaskQueue.head" since "2.23";
        WORKS = "workQueue.head" since "2.22";
        PROXY_OPS = "proxyOpQueue.head" since "2.22";
        /// One-sided calls, until `ncclLaunchRma` takes them out.
        RMA_PROXY_TASKS = "rmaTaskQueueProxy.head" since "2.29";
        RMA_COPY_TASKS = "rmaTaskQueueCe.head" since "2.29";
        /// Work of the plan on each channel.
        CHANNELS = "channels" until "2.21";
        /// Pointer to the last `ncclWorkList` of the first channel.
        CHANNEL_LAST_WORK = "channels.workQueue.tail" until "2.21";
        /// Number of elements of the first channel's last work; in a union with `nWorkElem`.
        CHANNEL_LAST_ELEMENTS = "channels.p2pTailElem" until "2.21";
    }

    /// Arguments of a kernel on symmetric memory in 2.27 (src/include/symmetric.h).
    Tracing sym_dev_args = "ncclSymDevArgs", lost "calls on symmetric memory: their counts and buffers" {
        ROOT = "rootRank" since "2.27" until "2.27";
        COUNT = "nElts" since "2.27" until "2.27";
        SEND_BUFFER = "input" since "2.27" until "2.27";
        RECV_BUFFER = "output" since "2.27" until "2.27";
    }

    /// Arguments of a kernel on symmetric memory from 2.28 on (src/include/sym_kernels.h): this, the ends of
    /// the channels' shares, then a [`symk_dev_work`] for each call.
    Tracing symk_dev_work_args = "ncclSymkDevWorkArgs",
    lost "calls on symmetric memory: their counts and buffers" {
        N_CHANNELS = "nMaxChannels" since "2.28";
    }

    Tracing symk_channel_range = "ncclSymkChannelWorkRange",
    lost "calls on symmetric memory: their counts and buffers" {}

    /// A call on symmetric memory.
    Tracing symk_dev_work = "ncclSymkDevWork", lost "calls on symmetric memory: their counts and buffers" {
        COUNT = "nElts" since "2.28";
        /// Pointer to the window on the device; 0: the buffer is in none, and the offset is its address.
        SEND_WINDOW = "inputWin" since "2.28";
        RECV_WINDOW = "outputWin" since "2.28";
        SEND_OFFSET = "inputOff" since "2.28";
        RECV_OFFSET = "outputOff" since "2.28";
        ROOT = "rootRank" since "2.28";
    }

    /// Device work of a broadcast of a group, on one channel (src/include/device.h, 2.29 and later).
    Tracing dev_work_bcast = "ncclDevWorkBcast", lost "grouped broadcasts that need no proxy" {
        /// Ranks upstream from this one, along the channel's ring, to the root.
        RING_DEPTH = "ringDepth" since "2.29";
        BYTES = "bytes" since "2.29";
    }

    /// Arguments of a collective by copy engines (src/include/ce_coll.h).
    Tracing ce_coll_args = "ncclCeCollArgs", lost "collectives by copy engines: their counts and buffers" {
        FUNC = "func" since "2.28";
        ROOT = "rootRank" since "2.28";
        DATATYPE = "datatype" since "2.29";
        COUNT = "nElts" since "2.28";
        ELEMENT_SIZE = "eltSize" since "2.28";
        SEND_BUFFER = "sendBuff" since "2.28";
        RECV_BUFFER = "recvBuff" since "2.28";
        /// Pointer to the `ncclDevrWindow` of the host; 0: the buffer is in none.
        SEND_WINDOW = "sendWin" since "2.28";
        RECV_WINDOW = "recvWin" since "2.28";
    }

    /// Arguments of a launch of one-sided calls (src/include/rma/rma.h).
    Tracing rma_args = "ncclRmaArgs", lost "launches of one-sided calls: how many calls they hold" {
        FUNC = "func" since "2.29";
        N_TASKS = "nRmaTasks" since "2.29";
    }

    /// A one-sided call: a put, a signal, or a wait for signals (src/include/comm.h).
    Tracing task_rma = "ncclTaskRma", lost "one-sided calls: their peers and bytes" {
        NEXT = "next" since "2.29";
        FUNC = "func" since "2.29";
        COUNT = "count" since "2.29";
        DATATYPE = "datatype" since "2.29";
        BYTES = "bytes" since "2.29";
        SOURCE = "srcBuff" since "2.29";
        SOURCE_WINDOW = "srcWinHost" since "2.29";
        SOURCE_OFFSET = "srcWinOffset" since "2.29";
        PEER = "peer" since "2.29";
        PEER_WINDOW = "peerWinHost" since "2.29";
        PEER_OFFSET = "peerWinOffset" since "2.29";
        /// Pointer to the ranks that a wait is for, and their number.
        PEERS = "peers" since "2.29";
        N_PEERS = "npeers" since "2.29";
    }
}

/// Structs that not every version has, each with the flag of the plan that came with it.
const WITH_A_FLAG: [(&str, crate::fields::FieldRef); 8] = [
    (sym_dev_args::STRUCT.name, kernel_plan::IS_SYMMETRIC),
    (symk_dev_work_args::STRUCT.name, kernel_plan::IS_COPY_ENGINE),
    (symk_channel_range::STRUCT.name, kernel_plan::IS_COPY_ENGINE),
    (symk_dev_work::STRUCT.name, kernel_plan::IS_COPY_ENGINE),
    (ce_coll_args::STRUCT.name, kernel_plan::IS_COPY_ENGINE),
    (dev_work_bcast::STRUCT.name, kernel_plan::IS_RMA),
    (rma_args::STRUCT.name, kernel_plan::IS_RMA),
    (task_rma::STRUCT.name, kernel_plan::IS_RMA),
];

/// Returns the flag of the plan without which a version has no use for this struct; `None` for other structs.
pub fn flag_of_launch(strukt: &str) -> Option<crate::fields::FieldRef> {
    WITH_A_FLAG.into_iter().find(|(name, _)| *name == strukt).map(|(_, flag)| flag)
}
