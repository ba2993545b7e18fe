//! Traffic between a rank and its peers.

use super::{histogram::Histogram, link_sums::LinkSums, sum::Sum};

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
pub type Traffic = LinkSums<Histogram>;

/// Sums over the messages with one peer.
pub type PeerStatistics = LinkSums<Sum>;
