//! State that NCCL keeps while the ranks of a communicator make their first connections (src/bootstrap.cc).

use super::field_ref::fields;

fields! {
    bootstrap_state = "bootstrapState" {
        RANK = "rank";
        N_RANKS = "nranks";
        /// State of the socket to the next rank of the ring (`ncclSocketState`, src/include/socket.h): 0
        /// until the root has told its address, 6 and 7 once it is connected.
        NEXT_STATE = "ring.socket.send.state" since "2.23", "ringSendSocket.state" until "2.22";
        /// Pointer to the addresses of all ranks; not 0 once both neighbours in the ring are connected.
        ADDRESSES = "peerP2pAddresses" since "2.23", "peerCommAddresses" until "2.22";
    }
}
