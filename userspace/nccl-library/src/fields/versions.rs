//! Facts that hold from a version of NCCL on, and how they are told.

use super::{channel, comm, proxy_op, shared_resources};
use crate::{layouts::Layouts, nccl::NcclVersion};

/// Most bytes of `p2pOpCount` and `collOpCount`, which are neighbours: 64 channels at most, and one more.
const MAX_OP_COUNTS: u64 = 640;

/// Tells whether `ncclComm.seqNumber` counts every collective that is launched: 2.26 and later, where NCCL's
/// reliability service reads it too (src/plugin/profiler.cc). 2.23 to 2.25 have it, but count only while a
/// profiler plugin is loaded.
///
/// Before 2.26 `collOpCount` counts every launch; from 2.27 on it leaves out what needs no network proxy
/// (src/enqueue.cc, hostStreamPlanTask).
///
/// The layouts tell for a library that does not state its version. `None`: nothing tells.
pub fn counts_always(version: Option<NcclVersion>, layouts: Option<&Layouts>) -> Option<bool> {
    match version {
        Some(version) => Some((version.major, version.minor) >= (2, 26)),
        None => layouts.map(|layouts| proxy_op::WORK_COUNTER.exists(layouts)),
    }
}

/// Tells whether ops state what their channel carries: 2.24 and later.
pub fn ops_say_their_share(layouts: &Layouts) -> bool {
    proxy_op::CHANNEL_SIZE.exists(layouts)
}

/// Tells whether ops lead to the task that they were made for: 2.23 and later.
pub fn ops_lead_to_tasks(layouts: &Layouts) -> bool {
    proxy_op::TASK.exists(layouts)
}

/// Tells whether parts of a send or receive go to channels in bit-reversed order (ncclP2pChannelForPart,
/// src/include/device.h): up to 2.28.3. 2.28.7, which brought `ncclComm.p2pSchedGroupSize`, turned the base
/// instead.
pub fn parts_are_reversed(layouts: &Layouts) -> bool {
    !comm::P2P_SCHED_GROUP_SIZE.exists(layouts)
}

/// Tells whether `ncclChannel.peers` has the addresses of the structs, 2.18 and later, and not the structs
/// themselves.
pub fn peers_are_pointers(layouts: &Layouts) -> bool {
    channel::PEERS.find(layouts).is_some_and(|peers| peers.type_name.matches('*').count() >= 2)
}

/// Returns the place of `p2pOpCount` and `collOpCount` in `ncclSharedResources`: offset and bytes of both
/// together.
pub fn op_counts_extent(layouts: &Layouts) -> Option<(u64, u64)> {
    let p2p = shared_resources::P2P_OP_COUNT.find(layouts)?;
    let collectives = shared_resources::COLL_OP_COUNT.find(layouts)?;
    let first = p2p.offset.min(collectives.offset);
    let end = p2p.offset.checked_add(p2p.size)?.max(collectives.offset.checked_add(collectives.size)?);
    Some((first, end.checked_sub(first).filter(|bytes| *bytes <= MAX_OP_COUNTS)?))
}

/// Tells whether a `ncclCudaGraph` begins with the stream that the capture began on (`origin`): 2.26 and later. With
/// it the struct is larger than 16 bytes, and so passed in memory (src/include/strongstream.h).
pub fn captures_have_an_origin(version: NcclVersion) -> bool {
    (version.major, version.minor) >= (2, 26)
}

/// Tells whether the root of a communicator's set-up tells a rank where the next one is as soon as that one
/// has come: 2.23 and later. Before, it tells all of them when all have come (src/bootstrap.cc,
/// bootstrapRoot).
pub fn root_answers_each_rank(version: Option<NcclVersion>) -> bool {
    version.is_some_and(|version| (version.major, version.minor) >= (2, 23))
}
