//! The kinds of waits of a message: the one list of them.

use std::{
    cmp::Ordering,
    ops::{Index, IndexMut},
};

use serde::{Deserialize, Serialize};

/// Kind of wait: what a message waited for. Derived from measured moments; a row's key is `wait_<name>_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Send: the GPU had not filled the slot.
    GpuReady,
    /// Send: the peer had not offered a buffer.
    PeerBuffer,
    /// Send: `GpuReady` or `PeerBuffer`, where the version does not tell them apart (up to 2.26).
    GpuReadyOrPeerBuffer,
    /// Send: the network was not done. Receive: the sender, and the network.
    Network,
    /// Receive: the data had arrived and was not yet handed to the GPU.
    Flush,
    /// Receive: the GPU had not taken it out of the slot.
    GpuConsume,
    /// Receive: `Flush` or `GpuConsume`, where handing over is not measured (`--step-detail waits`).
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

/// Waits of a message in nanoseconds, by kind; `None` where a moment is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTimes([Option<u64>; Wait::ALL.len()]);

impl WaitTimes {
    /// Makes waits of times in the order of [`Wait::ALL`].
    pub fn new(times: [Option<u64>; Wait::ALL.len()]) -> Self {
        Self(times)
    }

    /// Returns all times, in the order of [`Wait::ALL`].
    pub fn all(&self) -> [Option<u64>; Wait::ALL.len()] {
        self.0
    }

    /// Returns the known waits.
    pub fn known(self) -> impl Iterator<Item = (Wait, u64)> {
        Wait::ALL.into_iter().zip(self.0).filter_map(|(wait, ns)| Some((wait, ns?)))
    }
}

impl Index<Wait> for WaitTimes {
    type Output = Option<u64>;

    fn index(&self, wait: Wait) -> &Option<u64> {
        &self.0[wait as usize]
    }
}

impl IndexMut<Wait> for WaitTimes {
    fn index_mut(&mut self, wait: Wait) -> &mut Option<u64> {
        &mut self.0[wait as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::Wait;
    use crate::schema::MessageRow;

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
