//! Device work: the arguments of a plan's kernel (src/include/device.h).

use super::field_ref::fields;

fields! {
    dev_work_coll = "ncclDevWorkColl",
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

    dev_work_p2p = "ncclDevWorkP2p",
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

    dev_work_batch = "ncclDevWorkBatch", lost "the batches of sends and receives of a plan" {
        NEXT_JUMP = "nextJump" since "2.22";
        NEXT_EXTENDS = "nextExtends" since "2.22";
        WORK_TYPE = "workType" since "2.22";
        OFFSET_BASE = "offsetBase" since "2.22";
        OFFSET_BITS = "offsetBitset" since "2.22";
    }

    dev_kernel_args = "ncclDevKernelArgs", lost "the batches of sends and receives of a plan" {}

    work = "ncclWork" {
        /// `ncclWorkType`.
        TYPE = "header.type" until "2.21";
        COLLECTIVES = "elems" until "2.21";
        REGISTERED_COLLECTIVES = "regElems" until "2.21";
        SENDS_AND_RECEIVES = "p2pElems" until "2.21";
    }

    /// `ncclWorkElem`: a collective's.
    work_elem = "ncclWorkElem", lost "the share of each channel in a collective that needs no proxy" {
        WORK_COUNT = "workCount" since "2.20" until "2.21";
        CHUNK_COUNT = "chunkCount" since "2.20" until "2.21";
        LAST_CHUNK_COUNT = "lastChunkCount" since "2.20" until "2.21";
    }

    /// `ncclWorkElemReg`, whose first member is an `ncclWorkElem`.
    work_elem_reg = "ncclWorkElemReg" {}

    work_elem_p2p = "ncclWorkElemP2p" {
        PEER = "peer" until "2.21";
        COUNT_HIGH = "countHi32" until "2.21";
        COUNT_LOW = "countLo32" until "2.21";
    }
}
