//! `ncclInfo`: the argument of `ncclEnqueueCheck` (src/include/info.h).

use super::field_ref::fields;

fields! {
    info = "ncclInfo", lost "the calls of the API" {
        /// `ncclFunc_t`.
        COLL = "coll";
        /// Pointer to the name of the API's function.
        OP_NAME = "opName";
        SEND_BUFFER = "sendbuff";
        RECV_BUFFER = "recvbuff";
        COUNT = "count";
        DATATYPE = "datatype";
        REDUCTION_OP = "op";
        ROOT = "root";
        COMM = "comm";
        STREAM = "stream";
    }
}
