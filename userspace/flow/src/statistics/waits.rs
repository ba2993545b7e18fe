//! What a message waited for, derived from the moments that were measured (docs/OUTPUT.md, `wait_*`).

use serde::Serialize;

use crate::model::{Measured, Waits};
use nccl_library::nccl::Direction;

/// What was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Send: the GPU had not filled the slot.
    GpuReady,
    /// Send: the peer had not offered a buffer.
    PeerBuffer,
    /// Send: one of the two, where the version does not tell them apart (up to 2.26).
    GpuReadyOrPeerBuffer,
    /// Send: the network was not done. Receive: the sender, and the network.
    Network,
    /// Receive: from arrival until it was handed to the GPU.
    Flush,
    /// Receive: the GPU had not taken it out of the slot.
    GpuConsume,
    /// Receive: one of the two, where handing over is not measured (`--step-detail waits`).
    FlushOrGpuConsume,
}

impl Wait {
    pub const ALL: [Self; 7] = [
        Self::GpuReady,
        Self::PeerBuffer,
        Self::GpuReadyOrPeerBuffer,
        Self::Network,
        Self::Flush,
        Self::GpuConsume,
        Self::FlushOrGpuConsume,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::GpuReady => "gpu_ready",
            Self::PeerBuffer => "peer_buffer",
            Self::GpuReadyOrPeerBuffer => "gpu_ready_or_peer_buffer",
            Self::Network => "network",
            Self::Flush => "flush",
            Self::GpuConsume => "gpu_consume",
            Self::FlushOrGpuConsume => "flush_or_gpu_consume",
        }
    }
}

/// The waits of all messages with a peer, nanoseconds: those of which both moments are known.
pub fn waits_of(direction: Direction, measured: &Measured) -> impl Iterator<Item = (Wait, u64)> {
    measured.messages.iter().enumerate().flat_map(move |(index, message)| {
        let waits = Waits::of(direction, message, measured.slot_free(index));
        let each = [
            (Wait::GpuReady, waits.gpu_ready),
            (Wait::PeerBuffer, waits.peer_buffer),
            (Wait::GpuReadyOrPeerBuffer, waits.gpu_ready_or_peer_buffer),
            (Wait::Network, waits.network),
            (Wait::Flush, waits.flush),
            (Wait::GpuConsume, waits.gpu_consume),
            (Wait::FlushOrGpuConsume, waits.flush_or_gpu_consume),
        ];
        each.into_iter().filter_map(|(wait, ns)| Some((wait, ns?)))
    })
}

/// Durations, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    pub count: u64,
    pub ns: u64,
}

impl Sum {
    pub fn note(&mut self, ns: u64) {
        self.count += 1;
        self.ns = self.ns.saturating_add(ns);
    }

    /// What has come since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { count: self.count.saturating_sub(before.count), ns: self.ns.saturating_sub(before.ns) }
    }
}
