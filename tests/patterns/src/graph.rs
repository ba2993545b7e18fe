//! The made-up graph: this rank's neighbours, on two channels that differ in everything.

/// Ranks of the communicator.
pub(crate) const RANKS: i32 = 8;
/// This rank.
pub(crate) const RANK: i32 = 2;
pub(crate) const NOBODY: i32 = -1;
/// The network's own reduction: the first number that is no rank.
pub(crate) const IN_NETWORK: i32 = RANKS;
/// The peer that is reached without a proxy, as over NVLink.
pub(crate) const NEAR: i32 = 5;

/// A channel's graphs, seen from this rank.
#[derive(Debug)]
pub(crate) struct Channel {
    /// This rank first, then along the ring.
    pub(crate) ring: [i32; RANKS as usize],
    pub(crate) tree_up: i32,
    pub(crate) tree_down: [i32; 3],
    pub(crate) collnet_chain_up: i32,
    pub(crate) collnet_direct_out: i32,
    pub(crate) nvls_out: i32,
    pub(crate) nvls_tree_up: i32,
    pub(crate) nvls_tree_down: [i32; 3],
}

impl Channel {
    pub(crate) fn next(&self) -> i32 {
        self.ring[1]
    }

    pub(crate) fn prev(&self) -> i32 {
        self.ring[RANKS as usize - 1]
    }
}

pub(crate) const CHANNELS: [Channel; 2] = [
    Channel {
        ring: [RANK, 6, 0, 7, 1, 4, 3, NEAR],
        tree_up: 7,
        tree_down: [0, 3, NOBODY],
        collnet_chain_up: IN_NETWORK,
        collnet_direct_out: IN_NETWORK,
        nvls_out: IN_NETWORK,
        nvls_tree_up: 4,
        nvls_tree_down: [NOBODY, 1, 6],
    },
    Channel {
        ring: [RANK, 3, 4, 5, 6, 7, 0, 1],
        tree_up: NOBODY,
        tree_down: [NEAR, NOBODY, NOBODY],
        collnet_chain_up: 1,
        collnet_direct_out: NOBODY,
        nvls_out: NOBODY,
        nvls_tree_up: NOBODY,
        nvls_tree_down: [NOBODY, 3, NOBODY],
    },
];
