//! The proxy's own state: the ops that it works on, and their connections (src/include/proxy.h).

use super::field_ref::fields;

fields! {
    proxy_state = "ncclProxyState", lost "the ops in flight" {
        /// The first `ncclProxyArgs` in flight.
        ACTIVE = "progressState.active";
        /// `ncclResult_t`.
        ASYNC_RESULT = "asyncResult" since "2.19";
    }

    /// `ncclProxyArgs`: ops of several connections that are taken together.
    proxy_args = "ncclProxyArgs", lost "the ops in flight, and the times of steps" {
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

    /// `ncclProxySubArgs`: the op of one connection.
    proxy_sub_args = "ncclProxySubArgs", lost "the ops in flight, and the times of steps" {
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
        /// Bytes of the message, or of all so far: see
        /// [`NameTables::step_size_is_per_message`](crate::nccl::NameTables::step_size_is_per_message).
        TRANSFER_SIZE = "transSize" since "2.23";
    }

    proxy_connection = "ncclProxyConnection", lost "the direction and the transport of a step" {
        /// 1 if this rank sends.
        SEND = "send";
        /// 0 if another process posts the ops.
        SAME_PROCESS = "sameProcess" since "2.18";
        /// `TRANSPORT_NET` and the like.
        TRANSPORT = "transport";
        /// Pointer to the transport's state of the connection: [`super::send_net_resources`].
        TRANSPORT_RESOURCES = "transportResources";
    }
}
