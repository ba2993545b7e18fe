//! What the CPU does of one-sided operations: the proxies of GIN, which GPUs give descriptors to, and of RMA,
//! which serves `ncclPutSignal` and `ncclWaitSignal`.
//!
//! Of both the layouts are those from 2.30 on.

use super::field_ref::fields;

/// `NCCL_GIN_TYPE_PROXY`, src/include/nccl_device/core.h: the CPU sends what the GPU asks for.
pub const GIN_BY_PROXY: u64 = 2;

fields! {
    /// What one communicator of a program's kernels has of GIN (src/include/gin/gin_host.h).
    Unshipped gin_dev_comm = "ncclGinStateDevComm", lost "what GPUs have put through the proxy" {
        /// Number of its way among [`shared_resources::GIN_BACKENDS`].
        BACKEND = "backendIndex" since "2.31";
        /// Pointer for each connection to what its way keeps: of the proxy a [`gin_context`].
        CONTEXTS = "ginCtx" since "2.30";
        /// Pointer for each connection to its `ncclNetDeviceHandle_t`.
        HANDLES = "devHandles" since "2.30";
        NEXT = "next" since "2.30";
    }

    /// One connection of the proxy (src/gin/gin_host_proxy.cc).
    Unshipped gin_context = "ginProxyCtx", lost "what GPUs have put through the proxy" {
        N_RANKS = "nRanks" since "2.30";
        /// The same as in [`gin_dev_comm::HANDLES`].
        HANDLE = "devHandle" since "2.28.7";
        /// Pointer to a [`gin_queues`] for each context, and their number.
        QUEUES = "hostGpuCtx" since "2.28.7";
        N_CONTEXTS = "nContexts" since "2.29.7";
    }

    /// Queues of one context: one for each target rank (src/gin/gin_host_proxy.cc).
    Unshipped gin_queues = "ginProxyHostGpuCtx", lost "what GPUs have put through the proxy" {
        /// Descriptors of a queue, a power of 2.
        SIZE = "queueSize" since "2.28.7";
        /// Pointer to the descriptors that the GPU writes (`ncclGinProxyGfd_t`). The proxy clears each when
        /// it takes it.
        DESCRIPTORS = "queues" since "2.28.7";
        /// Pointer for each target to the count of descriptors that are done, also those before them.
        DONE = "cisShadow" since "2.28.7";
        /// Pointer for each target to the count of descriptors that were taken.
        TAKEN = "sis" since "2.28.7";
        /// Pointer to a [`gin_descriptor_state`] for each descriptor.
        STATES = "states" since "2.28.7";
    }

    /// What the proxy keeps of a descriptor (src/gin/gin_host_proxy.cc).
    Unshipped gin_descriptor_state = "ginProxyGfdState", lost "what GPUs have put through the proxy" {
        /// Bits `ncclGinProxyOp_t`.
        OP = "op" since "2.28.7";
    }

    /// One context of the proxy of one-sided calls: queues for each peer (src/include/rma/rma_proxy.h).
    Unshipped rma_context = "ncclRmaProxyCtx", lost "one-sided calls that the CPU makes" {
        /// Its communicator.
        COMM = "comm" since "2.29";
        /// Descriptors of a queue, a power of 2.
        QUEUE_SIZE = "queueSize" since "2.29";
        /// Pointer to pointers to [`rma_descriptor`], the queues of the peers one after the other.
        QUEUES = "circularBuffers" since "2.30";
        /// Pointer for each peer to the count of descriptors that were queued.
        QUEUED = "pis" since "2.29";
        /// Pointer for each peer to the count of descriptors that were taken.
        TAKEN = "cis" since "2.29";
        /// Pointer for each peer to the list (`ncclIntruQueue`) of those that were taken and are not done.
        IN_PROGRESS = "inProgressQueues" since "2.30";
        /// Pointer for each peer to the number of the last operation that the stream has come to.
        READY = "readySeqs" since "2.29";
        /// Pointer to the counts of signals that were waited for or are to be: of each signal
        /// ([`crate::fields::comm::RMA_SIGNALS`]) those of all peers.
        EXPECTED = "signalsHost" since "2.29";
        /// Pointer, into the GPU's memory, to the counts of signals that came, likewise.
        ARRIVED = "signalsDev" since "2.29";
        /// Pointer for each peer to the list of the descriptors of CUDA graphs.
        OF_GRAPHS = "persistentQueues" since "2.30";
        /// Pointers as `EXPECTED` and `ARRIVED`, for CUDA graphs: counts of signals that were waited for, and
        /// that came.
        GRAPHS_WAITED = "cpuAccessSignalsHost" since "2.30";
        GRAPHS_ARRIVED = "cpuAccessSignals" since "2.30";
    }

    /// A put or a wait of the proxy (src/include/rma/rma_proxy.h).
    Unshipped rma_descriptor = "ncclRmaProxyDesc", lost "one-sided calls that the CPU makes" {
        NEXT = "next" since "2.29";
        /// `ncclRmaDescType_t`: 0 put, 1 wait, 2 several puts.
        TYPE = "rmaDescType" since "2.30";
        /// `ncclRmaDescState_t`; 2: of a graph, in progress.
        STATE = "rmaDescState" since "2.29";
        /// Number of the operation among those of its peer.
        NUMBER = "opSeq" since "2.30";
        /// The put itself, also an element of `GROUP`.
        PUT = "putSignal" since "2.30";
        BYTES = "putSignal.size" since "2.30";
        TARGET = "putSignal.targetRank" since "2.30";
        /// Not 0: with a signal.
        SIGNAL = "putSignal.signal.op" since "2.30";
        /// Pointer that is not 0 while the put is in flight.
        REQUEST = "putSignal.request" since "2.30";
        WAIT_COUNT = "waitSignal.npeers" since "2.30";
        /// Pointers to the peers, and to the signals of each.
        WAIT_PEERS = "waitSignal.waitPeers" since "2.30";
        WAIT_SIGNALS = "waitSignal.waitSignals" since "2.30";
        /// Pointer to the number of the signal of each.
        WAIT_NUMBERS = "waitSignal.waitSignalIdxs" since "2.31";
        /// Pointer to the puts, and their number: all, and those given to the network.
        GROUP = "putSignalGroup.ops" since "2.30.7";
        GROUP_COUNT = "putSignalGroup.nOps" since "2.30.7";
        GROUP_ISSUED = "putSignalGroup.nIssued" since "2.30.7";
    }
}
