//! Device work: the arguments of a plan's kernel, from which each channel's share follows (2.22 and later).

use super::plan_fields::{P2pWorkFields, WorkFields};
use nccl_library::{fields::BitField, nccl::p2p_part_bytes};

/// A node of the work queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Bytes of the device work.
    pub size: u64,
    pub what: WorkKind,
}

/// Device work by kind, with the values that a channel's share is computed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkKind {
    Coll(CollWork),
    P2p(P2pWork),
    /// A broadcast of a group (2.29 and later). The work does not say on which channel it runs.
    Broadcast(Option<BroadcastWork>),
    /// A kind of a later version.
    Other,
}

/// `ncclDevWorkColl`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollWork {
    /// First and last channel.
    pub channels: (u32, u32),
    /// Elements on the first, each middle and the last channel.
    pub counts: [u64; 3],
    /// Size of a chunk on these channels, in grains of the protocol.
    pub chunk_grains: [u64; 3],
    /// Elements of the whole, and elements of a chunk, where all channels share evenly.
    pub collnet: (u64, u64),
}

/// `ncclDevWorkP2p`; in `sides` the receive is first, then the send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P2pWork {
    pub n_p2p_channels: u32,
    pub channel_base: u32,
    pub parts_reversed: bool,
    pub sides: [P2pSide; 2],
}

/// `ncclDevWorkBcast`: what a channel does for one broadcast of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BroadcastWork {
    /// Ranks upstream along the channel's ring to the root. Works of a channel are in its order.
    pub ring_depth: i32,
    pub bytes: u64,
}

/// Share that a channel has of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelShare {
    /// Elements of this channel.
    pub count: u64,
    /// Elements of the channels before this one.
    pub before: u64,
    /// Size of a chunk, in grains of the protocol.
    pub chunk_grains: u64,
}

impl CollWork {
    /// Returns the share of a channel, where channels have parts of their own: `ncclCollCbdPart`
    /// (src/include/device.h, 2.22 to 2.30).
    pub fn share_of(&self, channel: u32) -> Option<ChannelShare> {
        let (first, last) = self.channels;
        let [lo, mid, hi] = self.counts;
        let [grains_lo, grains_mid, grains_hi] = self.chunk_grains;
        if channel < first || channel > last {
            return None;
        }
        let middle = u64::from(channel - first).saturating_sub(1);
        let before = lo.checked_add(mid.checked_mul(middle)?)?;
        Some(if channel == first {
            ChannelShare { count: lo, before: 0, chunk_grains: grains_lo }
        } else if channel == last {
            ChannelShare { count: hi, before, chunk_grains: grains_hi }
        } else {
            ChannelShare { count: mid, before, chunk_grains: grains_mid }
        })
    }
}

impl P2pWork {
    /// Returns the channel of a part: `ncclP2pChannelForPart` (src/include/device.h, 2.22 to 2.30).
    pub fn channel_of(&self, part: u32) -> Option<u32> {
        let mask = self.n_p2p_channels.checked_sub(1)?;
        let turned = if self.parts_reversed {
            part.reverse_bits().checked_shr(u32::BITS - mask.count_ones()).unwrap_or(0)
        } else {
            part
        };
        Some(self.channel_base.checked_add(turned)? & mask)
    }
}

/// Direction of a [`P2pWork`]: its receive or its send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P2pSide {
    pub peer: i32,
    pub bytes: u64,
    /// Channels that the side is split over; 0: nothing goes this way.
    pub n_channels: u32,
    /// Payload bytes of a chunk.
    pub chunk_data_size: u64,
    pub is_ll: bool,
    pub is_registered: bool,
}

impl P2pSide {
    /// Returns the payload bytes of a part.
    pub fn part_bytes(&self, part: u32) -> Option<u64> {
        p2p_part_bytes(self.bytes, self.n_channels.into(), part.into())
    }
}

/// Decodes an `ncclWorkList` and the device work behind it.
pub(super) fn work(of: &WorkFields, bytes: &[u8]) -> Option<Work> {
    let kind = of.kind.of(bytes)?;
    let [p2p, coll, coll_registered] = of.kinds;
    let what = if kind == p2p {
        WorkKind::P2p(p2p_work(&of.p2p, bytes)?)
    } else if kind == coll || kind == coll_registered {
        let of = &of.coll;
        let channel = |field: BitField| u32::try_from(field.of(bytes)?).ok();
        WorkKind::Coll(CollWork {
            channels: (channel(of.channel_lo)?, channel(of.channel_hi)?),
            counts: [of.count_lo.of(bytes)?, of.count_mid.of(bytes)?, of.count_hi.of(bytes)?],
            chunk_grains: [
                of.chunk_grains_lo.of(bytes)?,
                of.chunk_grains_mid.of(bytes)?,
                of.chunk_grains_hi.of(bytes)?,
            ],
            collnet: (of.collnet_count.of(bytes)?, of.collnet_chunk_count.of(bytes)?),
        })
    } else if Some(kind) == of.broadcast {
        WorkKind::Broadcast(of.broadcast_work.and_then(|of| {
            Some(BroadcastWork { ring_depth: of.ring_depth.int_of(bytes)?, bytes: of.bytes.of(bytes)? })
        }))
    } else {
        WorkKind::Other
    };
    Some(Work { size: of.size.of(bytes)?, what })
}

fn p2p_work(of: &P2pWorkFields, bytes: &[u8]) -> Option<P2pWork> {
    let small = |field: BitField| u32::try_from(field.of(bytes)?).ok();
    let side = |at: usize| -> Option<P2pSide> {
        Some(P2pSide {
            peer: of.peer.get(at)?.int_of(bytes)?,
            bytes: of.bytes.get(at)?.of(bytes)?,
            n_channels: small(*of.n_channels.get(at)?)?,
            chunk_data_size: small_float(of.chunk_size.get(at)?.of(bytes)?),
            is_ll: of.is_ll.get(at)?.of(bytes)? != 0,
            is_registered: of.is_registered.get(at)?.of(bytes)? != 0,
        })
    };
    Some(P2pWork {
        n_p2p_channels: small(of.n_p2p_channels)?,
        channel_base: small(of.channel_base)?,
        parts_reversed: of.parts_reversed,
        sides: [side(0)?, side(1)?],
    })
}

/// Decodes NCCL's 8-bit floating point number without sign: 5 bits of exponent, 3 of mantissa
/// (`u32fp8Decode`, src/include/bitops.h, 2.22 to 2.32).
fn small_float(encoded: u64) -> u64 {
    let (exponent, mantissa) = (encoded >> 3, encoded & 7);
    match exponent {
        0 => mantissa,
        _ => (mantissa | 8).checked_shl(u32::try_from(exponent - 1).unwrap_or(u32::MAX)).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::small_float;

    #[test]
    fn chunk_sizes_of_sends_and_receives_are_unpacked() {
        // Encoded by hand: 131072 = 2^17: exponent 17 - 2 = 15, mantissa 0; 24 = 0b11000: exponent 2,
        // mantissa 4.
        assert_eq!(small_float(15 << 3), 131_072);
        assert_eq!(small_float((2 << 3) | 4), 24);
        assert_eq!(small_float(5), 5);
        assert_eq!(small_float((30 << 3) | 7), 15 << 29);
    }
}
