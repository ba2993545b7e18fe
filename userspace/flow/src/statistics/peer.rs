//! What passes between a rank and its peers.

use serde::Serialize;

use super::{
    histogram::Histogram,
    waits::{Sum, Wait, waits_of},
};
use crate::model::{BytesKind, FlowRecord, PeerFlow, transfers};
use nccl_library::nccl::Direction;

/// What connects a rank with a peer: NCCL's transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PeerKind {
    /// The network.
    Net,
    /// From GPU to GPU, over NVLink or PCIe.
    P2p,
    /// Shared memory of the host.
    Shm,
    /// The network's own reduction (CollNet).
    Col,
    /// Another one, or one whose name could not be read.
    Other,
}

impl PeerKind {
    pub fn of(transport: &str) -> Self {
        match transport {
            "NET" => Self::Net,
            "P2P" => Self::P2p,
            "SHM" => Self::Shm,
            "COL" => Self::Col,
            _ => Self::Other,
        }
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

/// What went one way over one kind of connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Planned or derived: bytes of messages whose size follows from the plan.
    pub planned_exact: u64,
    /// Planned or derived: of the others, an upper bound.
    pub planned_capacity: u64,
    /// Measured: messages that came to their end.
    pub messages: u64,
    /// Measured: bytes of the messages whose size was seen.
    pub bytes: u64,
    /// From a message's start to its end. Measured, with `--step-detail transitions`; else the start is derived, as the moment from
    /// which its slot was free.
    pub durations: Histogram,
    /// Derived from what was measured; in the order of [`Wait::ALL`].
    pub waits: [Histogram; Wait::ALL.len()],
}

/// The sums of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerStatistics {
    pub messages: u64,
    pub bytes: u64,
    /// In the order of [`Wait::ALL`].
    pub waits: [Sum; Wait::ALL.len()],
}

impl PeerStatistics {
    pub fn wait(&self, wait: Wait) -> Sum {
        self.waits.get(wait as usize).copied().unwrap_or_default()
    }
}

impl Traffic {
    /// Adds what an op sends to, or receives from, a peer.
    pub(super) fn add(&mut self, record: &FlowRecord, peer: &PeerFlow) {
        for transfer in transfers(record, peer) {
            let sum = match transfer.bytes_kind {
                BytesKind::Exact => &mut self.planned_exact,
                BytesKind::Capacity => &mut self.planned_capacity,
            };
            *sum = sum.saturating_add(transfer.bytes);
        }
        let Some(measured) = &peer.measured else { return };
        for (index, message) in measured.messages.iter().enumerate() {
            let begun = message.start.or(message.posted).or_else(|| measured.slot_free(index));
            if let (Some(begun), Some(end)) = (begun, message.end) {
                self.durations.note(end.saturating_sub(begun));
            }
        }
        for (wait, ns) in waits_of(peer.direction, measured) {
            if let Some(histogram) = self.waits.get_mut(wait as usize) {
                histogram.note(ns);
            }
        }
        let (messages, bytes) = measured.totals();
        self.messages += messages;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl PeerStatistics {
    pub(super) fn add(&mut self, direction: Direction, peer: &PeerFlow) {
        let Some(measured) = &peer.measured else { return };
        for (wait, ns) in waits_of(direction, measured) {
            if let Some(sum) = self.waits.get_mut(wait as usize) {
                sum.note(ns);
            }
        }
        let (messages, bytes) = measured.totals();
        self.messages += messages;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}
