//! Traffic between a rank and its peers.

use super::{
    histogram::Histogram,
    link_sums::{LinkSums, Sum},
};
use crate::schema::named::named;

named! {
    /// Kind of connection between a rank and a peer: NCCL's transports.
    #[derive(PartialOrd, Ord, Hash)]
    PeerKind {
        /// The network.
        Net = "NET",
        /// GPU to GPU, over NVLink or PCIe.
        P2p = "P2P",
        /// Shared memory of the host.
        Shm = "SHM",
        /// The network's own reduction (CollNet).
        Col = "COL",
        /// Another transport, or one whose name could not be read.
        Other = "other",
    }
}

impl PeerKind {
    pub fn of(transport: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.name() == transport).unwrap_or(Self::Other)
    }
}

/// Traffic in one direction over one kind of connection.
pub type Traffic = LinkSums<Histogram>;

/// Sums over the messages with one peer.
pub type PeerStatistics = LinkSums<Sum>;
