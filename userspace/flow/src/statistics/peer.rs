//! Traffic between a rank and its peers.

use super::{histogram::Histogram, sum::Sum};
use crate::schema::{BytesKind, MessageRow, MessageSums, Wait};

/// Kind of connection between a rank and a peer: NCCL's transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerKind {
    /// The network.
    Net,
    /// GPU to GPU, over NVLink or PCIe.
    P2p,
    /// Shared memory of the host.
    Shm,
    /// The network's own reduction (CollNet).
    Col,
    /// Another transport, or one whose name could not be read.
    Other,
}

impl PeerKind {
    pub fn of(transport: &str) -> Self {
        let known = [Self::Net, Self::P2p, Self::Shm, Self::Col];
        known.into_iter().find(|kind| kind.name() == transport).unwrap_or(Self::Other)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Net => "NET",
            Self::P2p => "P2P",
            Self::Shm => "SHM",
            Self::Col => "COL",
            Self::Other => "other",
        }
    }
}

/// Traffic in one direction over one kind of connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Planned or derived: bytes of messages whose size follows from the plan.
    pub planned_exact: u64,
    /// Planned or derived: capacities of the other messages, an upper bound.
    pub planned_capacity: u64,
    /// Measured: messages that came to their end.
    pub messages: u64,
    /// Measured: bytes of the messages whose size was seen.
    pub bytes: u64,
    /// Times from a message's start to its end. Measured, with `--step-detail transitions`; else the start is
    /// derived, as the moment from which the message's slot was free.
    pub durations: Histogram,
    /// Waits, derived from what was measured; in the order of [`Wait::ALL`].
    pub waits: [Histogram; Wait::ALL.len()],
}

/// Sums over the messages with one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerStatistics {
    pub messages: u64,
    pub bytes: u64,
    /// Waits, in the order of [`Wait::ALL`].
    pub waits: [Sum; Wait::ALL.len()],
}

impl PeerStatistics {
    pub fn wait(&self, wait: Wait) -> Sum {
        self.waits.get(wait as usize).copied().unwrap_or_default()
    }
}

impl Traffic {
    /// Adds a message that an op sends to, or receives from, a peer.
    pub(super) fn add(&mut self, message: &MessageRow) {
        let sum = match message.bytes_kind {
            BytesKind::Exact => &mut self.planned_exact,
            BytesKind::Capacity => &mut self.planned_capacity,
        };
        *sum = sum.saturating_add(message.bytes);
        let begun = message.t_start_ns.get().or(message.t_posted_ns.get()).or(message.t_slot_free_ns.get());
        if let (Some(begun), Some(end)) = (begun, message.t_end_ns.get()) {
            self.durations.note(end.saturating_sub(begun));
        }
        for (wait, ns) in message.waits().known() {
            if let Some(histogram) = self.waits.get_mut(wait as usize) {
                histogram.note(ns);
            }
        }
        self.messages += u64::from(message.t_end_ns.get().is_some());
        self.bytes = self.bytes.saturating_add(message.bytes_measured.get().unwrap_or(0));
    }
}

impl Traffic {
    /// Adds messages that were only planned.
    pub(super) fn add_sums(&mut self, sums: &MessageSums) {
        self.planned_exact = self.planned_exact.saturating_add(sums.bytes_exact);
        self.planned_capacity = self.planned_capacity.saturating_add(sums.bytes_capacity);
    }
}

impl PeerStatistics {
    pub(super) fn add(&mut self, message: &MessageRow) {
        for (wait, ns) in message.waits().known() {
            if let Some(sum) = self.waits.get_mut(wait as usize) {
                sum.note(ns);
            }
        }
        self.messages += u64::from(message.t_end_ns.get().is_some());
        self.bytes = self.bytes.saturating_add(message.bytes_measured.get().unwrap_or(0));
    }
}
