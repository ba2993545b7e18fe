//! Arguments that a call of the API has.

use crate::decode::ApiLineEvent;

/// Meaning of the fields of `ncclInfo` for a function. NCCL fills fields that a function has no use for with
/// `ncclSum` and 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) reduces: bool,
    pub(super) has_root: bool,
    pub(super) has_peer: bool,
    pub(super) send_buffer: Option<u64>,
    pub(super) recv_buffer: Option<u64>,
}

impl Arguments {
    /// Returns the arguments by the call's name, as in src/collectives.cc up to 2.30. `Reduce`, and a
    /// function that came later, has operator, root and both buffers.
    pub(super) fn of(event: &ApiLineEvent) -> Self {
        let function: &str = &event.name;
        let (reduces, has_root, has_peer) = match function {
            "AllReduce" | "ReduceScatter" => (true, false, false),
            "Broadcast" | "Gather" | "Scatter" => (false, true, false),
            "AllGather" | "AlltoAll" | "WaitSignal" => (false, false, false),
            "Send" | "Recv" | "PutSignal" | "Signal" => (false, false, true),
            _ => (true, true, false),
        };
        let (send, recv) = (event.send_buffer, event.recv_buffer);
        let (send_buffer, recv_buffer) = match function {
            // Send and Recv have one buffer, and NCCL keeps both in recvbuff.
            "Send" if send == 0 => (Some(recv), None),
            "Recv" => (None, Some(recv)),
            "PutSignal" => (Some(send), None),
            "Signal" | "WaitSignal" => (None, None),
            _ => (Some(send), Some(recv)),
        };
        Self { reduces, has_root, has_peer, send_buffer, recv_buffer }
    }
}
