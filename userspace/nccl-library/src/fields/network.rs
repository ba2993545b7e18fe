//! State that the network transport keeps of a connection (src/transport/net.cc), and the memory through
//! which the GPU and the proxy tell each other how far they are (src/include/comm.h).

use super::field_ref::fields;

fields! {
    send_net_resources = "sendNetResources", lost "the measured sizes of messages up to 2.22" {
        /// Count of FIFO steps that were begun.
        STEP = "step" since "2.19";
        /// Pointer to the `ncclRecvMem`.
        RECV_MEM = "recvMem" since "2.19";
    }

    recv_net_resources = "recvNetResources" {
        /// Count of FIFO steps that were begun.
        STEP = "step" since "2.19";
        /// Pointer to the `ncclSendMem`.
        SEND_MEM = "sendMem" since "2.19";
    }

    send_mem = "ncclSendMem" {
        /// Count of FIFO steps that the receiver's GPU has consumed.
        HEAD = "head";
    }

    recv_mem = "ncclRecvMem", lost "the measured sizes of messages up to 2.22" {
        /// Count of FIFO steps that the sender's GPU has filled.
        TAIL = "tail";
        /// An [`conn_fifo`] for each slot.
        CONN_FIFO = "connFifo" since "2.20";
        /// Bytes of the message in each slot, of 32 bits.
        SIZES_FIFO = "sizesFifo" until "2.19";
    }

    /// `ncclConnFifo` (src/include/device.h).
    conn_fifo = "ncclConnFifo", lost "the measured sizes of messages up to 2.22" {
        /// Bytes of the message in the slot.
        SIZE = "size" since "2.20";
    }
}
