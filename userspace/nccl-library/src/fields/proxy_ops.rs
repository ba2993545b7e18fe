//! `ncclProxyOp`: the description of an op that the proxy is given (src/include/proxy.h).

use super::field_ref::fields;

fields! {
    proxy_op = "ncclProxyOp", lost "the planned and the posted proxy ops" {
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
        /// `ncclFunc_t`.
        COLL = "coll" since "2.20";
        /// `ncclFunc_t` of the API's call.
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
}
