//! Protocols and algorithms: `#define`s in NCCL, so DWARF does not have them. Their order here gives their
//! numbers.

use super::named::named;

named! {
    /// `NCCL_PROTO_*`: LL 0, LL128 1, SIMPLE 2 in every version from 2.16 to 2.32 (src/include/nccl_common.h,
    /// devcomm.h before).
    #[derive(Default)]
    Protocol {
        #[default]
        Ll = "LL",
        Ll128 = "LL128",
        Simple = "SIMPLE",
        /// None of NCCL's: a launch without proxy ops has no protocol.
        None = "NONE",
    }
}

impl Protocol {
    /// Returns the protocol with a number of NCCL's.
    pub fn of_nccl(number: u64) -> Option<Self> {
        Self::from_number(number).filter(|protocol| *protocol != Self::None)
    }

    /// Returns the bytes that chunk sizes are multiples of (`ncclProtoGrainSize`, src/include/device.h, 2.22
    /// to 2.30).
    pub fn grain_bytes(self) -> u64 {
        match self {
            Self::Ll => 16,
            Self::Ll128 => 1920,
            Self::Simple | Self::None => 512,
        }
    }

    /// Returns the bytes that the protocol puts into the FIFO for `payload` bytes of data: LL sends 8 bytes
    /// of data in a line of 16, LL128 1,920 in 2,048 (per warp: 15 of 16 words; src/device/prims_ll128.h of
    /// 2.27).
    pub fn wire_bytes(self, payload: u64) -> u64 {
        match self {
            Self::Ll => payload.div_ceil(8).saturating_mul(16),
            Self::Ll128 => payload.div_ceil(1920).saturating_mul(2048),
            Self::Simple | Self::None => payload,
        }
    }
}

named! {
    /// `NCCL_ALGO_*` (same headers): 0 to 3 in every version, NVLS from 2.17, NVLS_TREE from 2.18, PAT from
    /// 2.23.
    Algorithm {
        Tree = "TREE",
        Ring = "RING",
        CollnetDirect = "COLLNET_DIRECT",
        CollnetChain = "COLLNET_CHAIN",
        Nvls = "NVLS",
        NvlsTree = "NVLS_TREE",
        Pat = "PAT",
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
