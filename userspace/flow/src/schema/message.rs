//! A message: a line of `flow_steps`.

use nccl_library::nccl::{Direction, Name, Pattern, Protocol, Transport};

use super::{named::named, observed::Observed, stage::Stage, wait::WaitTimes};

named! {
    /// What a `bytes` field means.
    BytesKind {
        /// What the message carries in the FIFO, by NCCL's own arithmetic.
        Exact = "exact",
        /// What its slots can hold: an upper bound.
        Capacity = "capacity",
    }
}

row! {
    /// A line of `flow_steps`: one message with one peer. The measured keys are there with `--level steps`
    /// only.
    pub struct MessageRow {
        /// As in the op's line.
        "opCount": Planned, op_count: u64;
        /// This rank.
        "rank": Identity, rank: i32;
        /// NCCL channel.
        "channel": Identity, channel: u32;
        /// FIFO step at which the message begins, counted from the op's first.
        "step": Derived "FIFO steps", step: u64;
        /// `SEND` or `RECV`.
        "op": Planned, op: Direction;
        /// With whom.
        "peer": Planned, peer: i32;
        /// See `bytes_kind`.
        "bytes": Derived "bytes", bytes: u64;
        /// As in the op's line.
        "pattern": Planned, pattern: Pattern;
        /// As in the op's line.
        "protocol": Planned, protocol: Protocol;
        /// `ring` `reduce-scatter` `allgather` `pipeline-from` `pipeline-to` `tree-up` `tree-down`
        /// `collnet-chain` `collnet-direct` `nvls` `nvls-tree` `pat-up` `pat-down` `p2p`
        "stage": Derived, stage: Stage;
        /// How much of the FIFO the message takes (`sliceSteps`).
        "slots": Planned "FIFO steps", slots: u64;
        /// `exact`: `bytes` is what the message puts into the FIFO (LL and LL128: flags included).
        /// `capacity`: an upper bound, where the size does not follow from the plan.
        "bytes_kind": Derived, bytes_kind: BytesKind;
        /// Repetition of the pattern.
        "loop": Derived, loop_index: u64;
        /// Step along the ring inside the loop; `null` without a ring.
        "ringStep": Derived, ring_step: Option<u64>;
        /// Part of the chunk. NCCL sends empty slices too: 0 bytes.
        "slice": Derived, slice: u64;
        /// Which chunk of the loop, counted along the ring (ring all-reduce); else `null`.
        "chunk": Derived, chunk: Option<u64>;
        /// As in the op's `peers`.
        "transport": Planned, transport: Transport;
        /// As in the op's line.
        "seq": Derived, seq: u64;
        /// As in the op's line.
        "commHash": Identity, comm_hash: Name;
        /// The op was posted, and this peer has a proxy.
        "posted": Measured, posted: bool;
        /// As in the op's line.
        "seqLocal": Derived, seq_local: Option<bool>, unless is_none;
        /// Send: the slot is offered to the GPU. With `--step-detail transitions`, and in versions that tell
        /// it together with `t_sent_ns`.
        "t_start_ns": Measured "ns", t_start_ns: Observed<u64>, unless is_absent;
        /// Receive: the network was asked for it. With `--step-detail transitions`.
        "t_posted_ns": Measured "ns", t_posted_ns: Observed<u64>, unless is_absent;
        /// Send: the GPU has filled the slot, and the network is asked to take it (2.27 and later).
        "t_ready_ns": Measured "ns", t_ready_ns: Observed<u64>, unless is_absent;
        /// Send: the network has taken it.
        "t_sent_ns": Measured "ns", t_sent_ns: Observed<u64>, unless is_absent;
        /// Receive: the data is there.
        "t_arrived_ns": Measured "ns", t_arrived_ns: Observed<u64>, unless is_absent;
        /// Receive: flushed, and handed to the GPU. With `--step-detail transitions`.
        "t_handed_ns": Measured "ns", t_handed_ns: Observed<u64>, unless is_absent;
        /// Send: the network is done with it. Receive: the GPU has taken it out of the slot.
        "t_end_ns": Measured "ns", t_end_ns: Observed<u64>, unless is_absent;
        /// Send: bytes given to the network. From 2.27 on NCCL tells each message's. 2.23 to 2.26 tell a
        /// running sum, whose growth it is: the first message that is seen of a place has none (2.23: what
        /// comes next shows it, also the first). 2.20 to 2.22: from the message's slot, unless the buffer is
        /// the user's own (`reg`). 2.16 to 2.19: from the slot just before it is reset, whatever network
        /// plugin sends it. Receive: bytes that came; 2.23 and later, in the same way.
        "bytes_measured": Measured "bytes", bytes_measured: Observed<u64>, unless is_absent;
        /// Only where another process's proxy sent the message (PXN): that process. The moments are those of
        /// its thread, on the same host's clock.
        "proxy_pid": Identity, proxy_pid: Option<u32>, unless is_none;
        /// The message could begin: the message before it in its slot had ended; of the first ones, the op
        /// was posted and the op before it on the connection had ended. The proxy takes it up in its next
        /// round.
        "t_slot_free_ns": Derived "ns", t_slot_free_ns: Observed<u64>, unless is_absent;
        /// Send: start (or else slot free) to ready: the GPU had not filled the slot.
        "wait_gpu_ready_ns": Derived "ns", wait_gpu_ready_ns: Observed<u64>, unless is_absent;
        /// Send: ready to sent: the peer had not offered a buffer.
        "wait_peer_buffer_ns": Derived "ns", wait_peer_buffer_ns: Observed<u64>, unless is_absent;
        /// Send: both, up to 2.26, which does not tell when it is ready.
        "wait_gpu_ready_or_peer_buffer_ns": Derived "ns",
            wait_gpu_ready_or_peer_buffer_ns: Observed<u64>, unless is_absent;
        /// Send: sent to end. Receive: posted (or else slot free) to arrived: the sender, and the network.
        "wait_network_ns": Derived "ns", wait_network_ns: Observed<u64>, unless is_absent;
        /// Receive: arrived to handed.
        "wait_flush_ns": Derived "ns", wait_flush_ns: Observed<u64>, unless is_absent;
        /// Receive: handed to end: the GPU had not taken it.
        "wait_gpu_consume_ns": Derived "ns", wait_gpu_consume_ns: Observed<u64>, unless is_absent;
        /// Receive: both, where handing over was not measured.
        "wait_flush_or_gpu_consume_ns": Derived "ns",
            wait_flush_or_gpu_consume_ns: Observed<u64>, unless is_absent;
    }
}

impl MessageRow {
    /// When it could begin: measured if it was, or else when its slot was free.
    pub fn begin(&self) -> Option<u64> {
        let begin = match self.op {
            Direction::Send => &self.t_start_ns,
            Direction::Recv => &self.t_posted_ns,
        };
        begin.get().or(self.t_slot_free_ns.get())
    }

    /// Something was seen of it, with `--level steps`.
    pub fn is_measured(&self) -> bool {
        self.t_slot_free_ns.get().is_some() || self.t_end_ns.get().is_some()
    }

    /// How long it waited, by kind.
    pub fn waits(&self) -> WaitTimes {
        WaitTimes::new([
            self.wait_gpu_ready_ns.get(),
            self.wait_peer_buffer_ns.get(),
            self.wait_gpu_ready_or_peer_buffer_ns.get(),
            self.wait_network_ns.get(),
            self.wait_flush_ns.get(),
            self.wait_gpu_consume_ns.get(),
            self.wait_flush_or_gpu_consume_ns.get(),
        ])
    }

    /// Sets how long it waited: the keys are there from now on.
    pub fn set_waits(&mut self, waits: &WaitTimes) {
        [
            self.wait_gpu_ready_ns,
            self.wait_peer_buffer_ns,
            self.wait_gpu_ready_or_peer_buffer_ns,
            self.wait_network_ns,
            self.wait_flush_ns,
            self.wait_gpu_consume_ns,
            self.wait_flush_or_gpu_consume_ns,
        ] = waits.all().map(Observed::looked_for);
    }
}
