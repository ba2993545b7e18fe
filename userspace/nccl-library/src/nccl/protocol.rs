//! Protocols and algorithms: `#define`s in NCCL, so DWARF does not have them.

use serde::{Deserialize, Serialize};

/// `NCCL_PROTO_*`: LL 0, LL128 1, SIMPLE 2 in every version from 2.16 to 2.32 (src/include/nccl_common.h,
/// devcomm.h before).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    #[default]
    Ll,
    Ll128,
    Simple,
}

impl Protocol {
    /// NCCL's number (`NCCL_PROTO_*`, 2.16 to 2.32).
    pub fn number(self) -> u8 {
        match self {
            Self::Ll => 0,
            Self::Ll128 => 1,
            Self::Simple => 2,
        }
    }

    /// What chunk sizes are multiples of, bytes (`ncclProtoGrainSize`, src/include/device.h, 2.22 to 2.30).
    pub fn grain_bytes(self) -> u64 {
        match self {
            Self::Ll => 16,
            Self::Ll128 => 1920,
            Self::Simple => 512,
        }
    }

    pub fn from_number(number: u64) -> Option<Self> {
        [Self::Ll, Self::Ll128, Self::Simple].get(usize::try_from(number).ok()?).copied()
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Ll => "LL",
            Self::Ll128 => "LL128",
            Self::Simple => "SIMPLE",
        }
    }

    /// Bytes that the protocol puts into the FIFO for `payload` bytes of data: LL sends 8 bytes of data in a
    /// line of 16, LL128 1,920 in 2,048 (per warp: 15 of 16 words; src/device/prims_ll128.h of 2.27).
    pub fn wire_bytes(self, payload: u64) -> u64 {
        match self {
            Self::Ll => payload.div_ceil(8).saturating_mul(16),
            Self::Ll128 => payload.div_ceil(1920).saturating_mul(2048),
            Self::Simple => payload,
        }
    }
}

/// `NCCL_ALGO_*` (same headers): 0 to 3 in every version, NVLS from 2.17, NVLS_TREE from 2.18, PAT from 2.23.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Algorithm {
    Tree,
    Ring,
    CollnetDirect,
    CollnetChain,
    Nvls,
    NvlsTree,
    Pat,
}

impl Algorithm {
    /// By NCCL's number (`NCCL_ALGO_*`, the same from 2.16 to 2.32 where they exist).
    pub const ALL: [Self; 7] = [
        Self::Tree,
        Self::Ring,
        Self::CollnetDirect,
        Self::CollnetChain,
        Self::Nvls,
        Self::NvlsTree,
        Self::Pat,
    ];

    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// NCCL's number.
    pub fn number(self) -> u8 {
        self as u8
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Tree => "TREE",
            Self::Ring => "RING",
            Self::CollnetDirect => "COLLNET_DIRECT",
            Self::CollnetChain => "COLLNET_CHAIN",
            Self::Nvls => "NVLS",
            Self::NvlsTree => "NVLS_TREE",
            Self::Pat => "PAT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ll_doubles_and_rounds_up_to_a_line_and_ll128_to_a_block() {
        assert_eq!(Protocol::Ll.wire_bytes(0), 0);
        assert_eq!(Protocol::Ll.wire_bytes(1), 16);
        assert_eq!(Protocol::Ll.wire_bytes(4096), 8192);
        assert_eq!(Protocol::Ll128.wire_bytes(1920), 2048);
        assert_eq!(Protocol::Ll128.wire_bytes(1921), 4096);
        assert_eq!(Protocol::Simple.wire_bytes(7), 7);
    }
}
