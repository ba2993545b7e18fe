//! A message: a line of `flow_steps`.

use std::cmp::Ordering;

use super::{named::named, observed::Observed};
use nccl_library::nccl::{Direction, Name, Pattern, Protocol, Transport};

named! {
    /// Kind of wait: what a message waited for. Derived from measured moments; a row's key is
    /// `wait_<name>_ns`.
    Wait {
        /// Send: the GPU had not filled the slot.
        GpuReady = "gpu_ready",
        /// Send: the peer had not offered a buffer.
        PeerBuffer = "peer_buffer",
        /// Send: `GpuReady` or `PeerBuffer`, where the version does not tell them apart (up to 2.26).
        GpuReadyOrPeerBuffer = "gpu_ready_or_peer_buffer",
        /// Send: the network was not done. Receive: the sender, and the network.
        Network = "network",
        /// Receive: the data had arrived and was not yet handed to the GPU.
        Flush = "flush",
        /// Receive: the GPU had not taken it out of the slot.
        GpuConsume = "gpu_consume",
        /// Receive: `Flush` or `GpuConsume`, where handing over is not measured (`--step-detail waits`).
        FlushOrGpuConsume = "flush_or_gpu_consume",
    }
}

/// Orders kinds by name, as JSON objects have their keys.
impl Ord for Wait {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(other.name())
    }
}

impl PartialOrd for Wait {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Waits of a message in nanoseconds, in the order of [`Wait::ALL`]; `None` where a moment is not known.
pub type WaitTimes = [Option<u64>; Wait::ALL.len()];

named! {
    /// Meaning of a `bytes` field.
    BytesKind {
        /// Bytes that the message carries in the FIFO, by NCCL's own arithmetic.
        Exact = "exact",
        /// Bytes that the message's slots can hold: an upper bound.
        Capacity = "capacity",
    }
}

named! {
    /// Part of a collective that a message belongs to.
    Stage {
        /// Ring of a function that is not known.
        Ring = "ring",
        ReduceScatter = "reduce-scatter",
        Allgather = "allgather",
        PipelineFrom = "pipeline-from",
        PipelineTo = "pipeline-to",
        TreeUp = "tree-up",
        TreeDown = "tree-down",
        CollnetChain = "collnet-chain",
        CollnetDirect = "collnet-direct",
        Nvls = "nvls",
        NvlsTree = "nvls-tree",
        PatUp = "pat-up",
        PatDown = "pat-down",
        P2p = "p2p",
    }
}

row! {
    /// A line of `flow_steps`: one message with one peer. Measured keys are there only with `--level steps`.
    pub struct MessageRow {
        /// `opCount` of the op's line.
        "opCount": Planned, op_count: u64;
        /// This rank.
        "rank": Identity, rank: i32;
        /// NCCL channel.
        "channel": Identity, channel: u32;
        /// FIFO step at which the message begins, counted from the op's first.
        "step": Derived "FIFO steps", step: u64;
        /// Direction: `SEND` or `RECV`.
        "op": Planned, op: Direction;
        /// Peer that the message goes to or comes from, as in the op's `peers`.
        "peer": Planned, peer: i32;
        /// Size of the message, or an upper bound of it: see `bytes_kind`.
        "bytes": Derived "bytes", bytes: u64;
        /// `pattern` of the op's line.
        "pattern": Planned, pattern: Pattern;
        /// `protocol` of the op's line.
        "protocol": Planned, protocol: Protocol;
        /// Part of the collective that the message belongs to: `ring` `reduce-scatter` `allgather`
        /// `pipeline-from` `pipeline-to` `tree-up` `tree-down` `collnet-chain` `collnet-direct` `nvls`
        /// `nvls-tree` `pat-up` `pat-down` `p2p`
        "stage": Derived, stage: Stage;
        /// FIFO steps that the message takes (`sliceSteps`).
        "slots": Planned "FIFO steps", slots: u64;
        /// `exact`: `bytes` is what the message puts into the FIFO (LL and LL128: flags included).
        /// `capacity`: an upper bound, where the size does not follow from the plan.
        "bytes_kind": Derived, bytes_kind: BytesKind;
        /// Repetition of the pattern, counted from 0.
        "loop": Derived, loop_index: u64;
        /// Step along the ring inside the loop, counted from 0; `null` without a ring.
        "ringStep": Derived, ring_step: Option<u64>;
        /// Part of the chunk, counted from 0. NCCL sends empty slices too: 0 bytes.
        "slice": Derived, slice: u64;
        /// Chunk of the loop, counted along the ring from 0 (ring all-reduce); else `null`.
        "chunk": Derived, chunk: Option<u64>;
        /// `transport` of the op's `peers`.
        "transport": Planned, transport: Transport;
        /// `seq` of the op's line.
        "seq": Derived, seq: u64;
        /// `commHash` of the op's line.
        "commHash": Identity, comm_hash: Name;
        /// The op was posted, and this peer has a proxy.
        "posted": Measured, posted: bool;
        /// `seqLocal` of the op's line.
        "seqLocal": Derived, seq_local: Option<bool>, unless is_none;
        /// Send: when the slot was offered to the GPU. With `--step-detail transitions`, and in versions that
        /// tell it together with `t_sent_ns`.
        "t_start_ns": Measured "ns", t_start_ns: Observed<u64>, unless is_absent;
        /// Receive: when the network was asked for the message. With `--step-detail transitions`.
        "t_posted_ns": Measured "ns", t_posted_ns: Observed<u64>, unless is_absent;
        /// Send: when the GPU had filled the slot, and the network was asked to take it (2.27 and later).
        "t_ready_ns": Measured "ns", t_ready_ns: Observed<u64>, unless is_absent;
        /// Send: when the network had taken the message.
        "t_sent_ns": Measured "ns", t_sent_ns: Observed<u64>, unless is_absent;
        /// Receive: when the data was there.
        "t_arrived_ns": Measured "ns", t_arrived_ns: Observed<u64>, unless is_absent;
        /// Receive: when the data was flushed, and handed to the GPU. With `--step-detail transitions`.
        "t_handed_ns": Measured "ns", t_handed_ns: Observed<u64>, unless is_absent;
        /// Send: when the network was done with the message. Receive: when the GPU had taken it out of the
        /// slot.
        "t_end_ns": Measured "ns", t_end_ns: Observed<u64>, unless is_absent;
        /// Send: bytes given to the network. From 2.27 on NCCL tells the size of each message. 2.23 to 2.26
        /// tell a running sum, and the size is its growth: the first message that is seen of a sum has none
        /// (2.23: the next report shows the size, also of the first). 2.20 to 2.22: from the message's slot,
        /// unless the buffer is the user's own (`registered`). 2.16 to 2.19: from the slot just before it is
        /// reset, whatever network plugin sends the message. Receive: bytes that came; 2.23 and later, in the
        /// same way.
        "bytes_measured": Measured "bytes", bytes_measured: Observed<u64>, unless is_absent;
        /// Process whose proxy sent the message, only where that is another process (PXN). The moments are
        /// those of its thread, on the same host's clock.
        "proxy_pid": Identity, proxy_pid: Option<u32>, unless is_none;
        /// When the message could begin: the message before it in its slot had ended; for the op's first
        /// messages, the op was posted and the op before it on the connection had ended. The proxy takes the
        /// message up in its next round.
        "t_slot_free_ns": Derived "ns", t_slot_free_ns: Observed<u64>, unless is_absent;
        /// Send: from `t_start_ns` (or else `t_slot_free_ns`) to `t_ready_ns`: the GPU had not filled the
        /// slot.
        "wait_gpu_ready_ns": Derived "ns", wait_gpu_ready_ns: Observed<u64>, unless is_absent;
        /// Send: from `t_ready_ns` to `t_sent_ns`: the peer had not offered a buffer.
        "wait_peer_buffer_ns": Derived "ns", wait_peer_buffer_ns: Observed<u64>, unless is_absent;
        /// Send, up to 2.26, which does not tell `t_ready_ns`: both waits together, from `t_start_ns` (or
        /// else `t_slot_free_ns`) to `t_sent_ns`.
        "wait_gpu_ready_or_peer_buffer_ns": Derived "ns",
            wait_gpu_ready_or_peer_buffer_ns: Observed<u64>, unless is_absent;
        /// Send: from `t_sent_ns` to `t_end_ns`. Receive: from `t_posted_ns` (or else `t_slot_free_ns`) to
        /// `t_arrived_ns`: the sender, and the network.
        "wait_network_ns": Derived "ns", wait_network_ns: Observed<u64>, unless is_absent;
        /// Receive: from `t_arrived_ns` to `t_handed_ns`.
        "wait_flush_ns": Derived "ns", wait_flush_ns: Observed<u64>, unless is_absent;
        /// Receive: from `t_handed_ns` to `t_end_ns`: the GPU had not taken the message.
        "wait_gpu_consume_ns": Derived "ns", wait_gpu_consume_ns: Observed<u64>, unless is_absent;
        /// Receive, where `t_handed_ns` was not measured: both waits together, from `t_arrived_ns` to
        /// `t_end_ns`.
        "wait_flush_or_gpu_consume_ns": Derived "ns",
            wait_flush_or_gpu_consume_ns: Observed<u64>, unless is_absent;
    }
}

impl MessageRow {
    /// Returns when the message could begin: the measured start, or else when its slot was free.
    pub fn begin(&self) -> Option<u64> {
        let begin = match self.op {
            Direction::Send => &self.t_start_ns,
            Direction::Recv => &self.t_posted_ns,
        };
        begin.get().or(self.t_slot_free_ns.get())
    }

    /// Tells whether anything was seen of the message, with `--level steps`.
    pub fn is_measured(&self) -> bool {
        self.t_slot_free_ns.get().is_some() || self.t_end_ns.get().is_some()
    }

    /// Returns how long the message waited.
    pub fn waits(&self) -> WaitTimes {
        [
            self.wait_gpu_ready_ns.get(),
            self.wait_peer_buffer_ns.get(),
            self.wait_gpu_ready_or_peer_buffer_ns.get(),
            self.wait_network_ns.get(),
            self.wait_flush_ns.get(),
            self.wait_gpu_consume_ns.get(),
            self.wait_flush_or_gpu_consume_ns.get(),
        ]
    }

    /// Returns the known waits.
    pub fn known_waits(&self) -> impl Iterator<Item = (Wait, u64)> {
        Wait::ALL.into_iter().zip(self.waits()).filter_map(|(wait, ns)| Some((wait, ns?)))
    }

    /// Sets how long the message waited: the keys are there from now on.
    pub fn set_waits(&mut self, waits: &WaitTimes) {
        [
            self.wait_gpu_ready_ns,
            self.wait_peer_buffer_ns,
            self.wait_gpu_ready_or_peer_buffer_ns,
            self.wait_network_ns,
            self.wait_flush_ns,
            self.wait_gpu_consume_ns,
            self.wait_flush_or_gpu_consume_ns,
        ] = waits.map(Observed::looked_for);
    }
}

/// Sums over the messages of an op with one peer: they follow from the op, and a ring of 1,024 ranks has
/// 2,046 of them for each loop, channel and direction. All values are planned, or derived from planned ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSums {
    pub op: Direction,
    pub peer: i32,
    pub channel: u32,
    pub transport: Transport,
    pub messages: u64,
    /// Bytes of the messages whose size follows from the plan; `bytes_capacity`: capacities of the others.
    pub bytes_exact: u64,
    pub bytes_capacity: u64,
}

#[cfg(test)]
mod tests {
    use super::{MessageRow, Wait};

    #[test]
    fn each_kind_has_its_place_and_its_key() {
        let keys: Vec<&str> = MessageRow::COLUMNS.iter().map(|column| column.key).collect();
        for (place, wait) in Wait::ALL.into_iter().enumerate() {
            assert_eq!(wait as usize, place);
            assert!(keys.contains(&format!("wait_{}_ns", wait.name()).as_str()), "{wait:?}");
        }
        assert_eq!(keys.iter().filter(|key| key.starts_with("wait_")).count(), Wait::ALL.len());
    }
}
