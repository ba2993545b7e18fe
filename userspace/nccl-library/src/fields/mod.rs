//! Facts about the layout of NCCL's structs.

use crate::layouts::Layouts;

/// Bytes of `p2pOpCount` and `collOpCount`, which are neighbours: 64 channels at most, and one more.
const MAX_OP_COUNTS: u64 = 640;

/// Whether ops say themselves what their channel carries: 2.24 and later.
pub fn ops_say_their_share(layouts: &Layouts) -> bool {
    layouts.field("ncclProxyOp", "channelSize").is_some()
}

/// Whether parts of a send or receive go to channels in bit-reversed order: up to 2.27. 2.28 turned the base instead, and
/// brought `ncclComm.p2pSchedGroupSize`.
pub fn parts_are_reversed(layouts: &Layouts) -> bool {
    layouts.field("ncclComm", "p2pSchedGroupSize").is_none()
}

/// Where `p2pOpCount` and `collOpCount` are in `ncclSharedResources`: offset and bytes of both together.
pub fn op_counts_extent(layouts: &Layouts) -> Option<(u64, u64)> {
    let p2p = layouts.field("ncclSharedResources", "p2pOpCount")?;
    let collectives = layouts.field("ncclSharedResources", "collOpCount")?;
    let first = p2p.offset.min(collectives.offset);
    let end = p2p.offset.checked_add(p2p.size)?.max(collectives.offset.checked_add(collectives.size)?);
    Some((first, end.checked_sub(first).filter(|bytes| *bytes <= MAX_OP_COUNTS)?))
}
