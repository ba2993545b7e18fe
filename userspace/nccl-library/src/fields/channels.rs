//! `ncclChannel`: a channel's graphs and its connections (src/include/comm.h; the graphs:
//! src/include/device.h).

use super::field_ref::fields;

fields! {
    channel = "ncclChannel", lost "the neighbours in ring, tree and the other graphs" {
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

    channel_peer = "ncclChannelPeer", lost "the transport to a peer" {
        /// `ncclConnector[NCCL_MAX_CONNS]`.
        SEND = "send";
        RECV = "recv";
    }
}
