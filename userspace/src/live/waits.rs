//! What a message waited for, derived from the moments that were measured (docs/OUTPUT.md, `wait_*`).

use serde::Serialize;

use crate::{decode::Direction, model::Message};

/// What was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Send: the GPU had not filled the slot.
    GpuReady,
    /// Send: the peer had not offered a buffer.
    PeerBuffer,
    /// Send: the network was not done. Receive: the sender, and the network.
    Network,
    /// Receive: from arrival until it was handed to the GPU.
    Flush,
    /// Receive: the GPU had not taken it out of the slot.
    GpuConsume,
}

impl Wait {
    pub const ALL: [Self; 5] =
        [Self::GpuReady, Self::PeerBuffer, Self::Network, Self::Flush, Self::GpuConsume];

    pub fn name(self) -> &'static str {
        match self {
            Self::GpuReady => "gpu_ready",
            Self::PeerBuffer => "peer_buffer",
            Self::Network => "network",
            Self::Flush => "flush",
            Self::GpuConsume => "gpu_consume",
        }
    }
}

/// The waits of a message of which both moments were seen, nanoseconds.
pub fn waits_of(direction: Direction, message: &Message) -> impl Iterator<Item = (Wait, u64)> {
    let Message { start, posted, ready, sent, arrived, handed, end, .. } = *message;
    let moments = match direction {
        Direction::Send => {
            [(Wait::GpuReady, start, ready), (Wait::PeerBuffer, ready, sent), (Wait::Network, sent, end)]
        }
        Direction::Recv => [
            (Wait::Network, posted, arrived),
            (Wait::Flush, arrived, handed),
            (Wait::GpuConsume, handed, end),
        ],
    };
    moments.into_iter().filter_map(|(wait, from, to)| Some((wait, to?.saturating_sub(from?))))
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
