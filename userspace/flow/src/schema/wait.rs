//! The kinds of waits of a message: the one list of them.

use std::cmp::Ordering;

use super::named::named;

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
