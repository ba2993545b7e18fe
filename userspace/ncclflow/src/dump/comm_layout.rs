//! Where the fields of `ncclComm` and of what hangs on it are, and the marks that one is found by.

use std::collections::BTreeMap;

use super::layout::{Fields, Missing, Place};
use crate::memory::Needle;
use nccl_library::{
    elf::RuntimeAddr,
    layouts::Layouts,
    nccl::{NameTables, NcclVersion},
};

/// `NCCL_MAGIC`, src/include/comm.h.
pub(super) const MAGIC: u64 = 0x0280_0280_0280_0280;
/// From this version on NCCL counts `seqNumber` whether a profiler is loaded or not (src/plugin/profiler.cc).
const COUNTS_ALWAYS: (u32, u32) = (2, 26);

/// Where the fields of `ncclComm` are.
#[derive(Debug)]
pub(crate) struct CommLayout {
    pub(super) size: u64,
    mark: Mark,
    pub(super) magics: Option<[Place; 2]>,
    pub(super) hash: Place,
    pub(super) rank: Place,
    pub(super) n_ranks: Place,
    pub(super) n_channels: Place,
    pub(super) node: Place,
    pub(super) n_nodes: Place,
    pub(super) local_rank: Place,
    pub(super) cuda_dev: Place,
    pub(super) nvml_dev: Option<Place>,
    pub(super) proxy_state: Place,
    pub(super) shared_res: Place,
    pub(super) intra_next: Option<Place>,
    pub(super) op_count: Option<Place>,
    pub(super) coll_op_count: Option<Place>,
    pub(super) seq_number: Option<(u64, u64)>,
    pub(super) init_state: Option<Place>,
    pub(super) async_result: Option<Place>,
    pub(super) abort_flag: Option<Place>,
    pub(super) finalize_called: Option<Place>,
    pub(super) destroy_flag: Option<Place>,
    pub(super) revoked_flag: Option<Place>,
    pub(super) comm_name: Option<Place>,
    /// Offset, count and size of `channels`.
    pub(super) channels: (u64, u64, u64),
    pub(super) ring_prev: Place,
    pub(super) ring_next: Place,
    pub(super) user_ranks: Place,
    pub(super) tree_up: Option<Place>,
    pub(super) tree_down: Option<(u64, u64, u64)>,
    pub(crate) peers: Place,
    pub(super) shared_coll_op_count: Option<Place>,
    pub(super) shared_p2p_op_count: Option<(u64, u64, u64)>,
    pub(super) work: Option<WorkLayout>,
    pub(super) names: NameTables,
    /// Values of `ncclResult_t` by name.
    pub(super) results: BTreeMap<u64, String>,
}

impl CommLayout {
    pub(crate) fn new(layouts: &Layouts, version: Option<NcclVersion>) -> Result<Self, Missing> {
        let comm = Fields::of(layouts, "ncclComm");
        let channel = Fields::of(layouts, "ncclChannel");
        let shared = Fields::of(layouts, "ncclSharedResources");
        let size = comm.size()?;
        let magics = comm.maybe("startMagic").zip(comm.maybe("endMagic")).map(|(start, end)| [start, end]);
        let mark = match (magics, comm.maybe("intraComm0")) {
            (Some([start, _]), _) => Mark::Magic(start.offset),
            (None, Some(own)) => Mark::SelfPointer(own.offset),
            (None, None) => return Err(Missing("ncclComm.startMagic".to_owned())),
        };
        let counts_always = version.is_some_and(|version| (version.major, version.minor) >= COUNTS_ALWAYS);
        let results = layouts.enums().find(|(name, _)| *name == "ncclResult_t");
        let results = results.into_iter().flat_map(|(_, results)| &results.values);
        Ok(Self {
            size,
            mark,
            magics,
            hash: comm.place("commHash")?,
            rank: comm.place("rank")?,
            n_ranks: comm.place("nRanks")?,
            n_channels: comm.place("nChannels")?,
            node: comm.place("node")?,
            n_nodes: comm.place("nNodes")?,
            local_rank: comm.place("localRank")?,
            cuda_dev: comm.place("cudaDev")?,
            nvml_dev: comm.maybe("nvmlDev"),
            proxy_state: comm.place("proxyState")?,
            shared_res: comm.place("sharedRes")?,
            intra_next: comm.maybe("intraNext"),
            op_count: comm.maybe("opCount"),
            coll_op_count: comm.maybe("collOpCount"),
            seq_number: comm
                .array("seqNumber")
                .ok()
                .filter(|(_, count, size)| counts_always && *size == 8 && *count <= 64)
                .map(|(offset, count, _)| (offset, count)),
            init_state: comm.maybe("initState"),
            async_result: comm.maybe("asyncResult"),
            abort_flag: comm.maybe("abortFlag"),
            finalize_called: comm.maybe("finalizeCalled"),
            destroy_flag: comm.maybe("destroyFlag"),
            revoked_flag: comm.maybe("revokedFlag"),
            comm_name: comm.maybe("config.commName"),
            channels: comm.array("channels")?,
            ring_prev: channel.place("ring.prev")?,
            ring_next: channel.place("ring.next")?,
            user_ranks: channel.place("ring.userRanks")?,
            tree_up: channel.maybe("tree.up"),
            tree_down: channel.array("tree.down").ok(),
            peers: channel.place("peers")?,
            shared_coll_op_count: shared.maybe("collOpCount"),
            shared_p2p_op_count: shared.array("p2pOpCount").ok(),
            work: WorkLayout::new(comm, channel),
            names: NameTables::from_layouts(layouts),
            results: results
                .filter_map(|(name, value)| Some((u64::try_from(*value).ok()?, name.clone())))
                .rev()
                .collect(),
        })
    }

    /// Whether collectives are counted where communicators that share resources count together: before 2.24.
    pub(crate) fn shares_coll_op_count(&self) -> bool {
        self.coll_op_count.is_none()
    }

    pub(crate) fn names(&self) -> &NameTables {
        &self.names
    }

    pub(crate) fn result(&self, value: Option<u64>) -> Option<String> {
        let value = value?;
        Some(self.results.get(&value).cloned().unwrap_or_else(|| format!("ncclResult_t {value}")))
    }

    /// The address of the struct of channel `channel` of the communicator at `comm`.
    pub(crate) fn channel(&self, comm: RuntimeAddr, channel: u32) -> Option<RuntimeAddr> {
        let (offset, count, size) = self.channels;
        (u64::from(channel) < count).then(|| RuntimeAddr(comm.0 + offset + u64::from(channel) * size))
    }

    /// What is looked for in memory.
    pub(super) fn needle(&self) -> Needle {
        match self.mark {
            Mark::Magic(_) => Needle::Word(MAGIC),
            Mark::SelfPointer(offset) => Needle::SelfPointer(offset),
        }
    }

    /// The communicator that a mark at `at` may belong to.
    pub(super) fn candidate(&self, at: u64) -> Option<u64> {
        let (Mark::Magic(offset) | Mark::SelfPointer(offset)) = self.mark;
        at.checked_sub(offset)
    }
}

/// Where host and GPU count the work of each channel: what was put into the FIFO of work, and what kernels are through with
/// (src/enqueue.cc, waitWorkFifoAvailable). Up to 2.25: later the host keeps no word that the GPU writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkLayout {
    /// In each channel.
    pub(super) produced: Place,
    /// In the communicator: a pointer to a `uint32_t` for each channel.
    pub(super) consumed: Place,
}

impl WorkLayout {
    fn new(comm: Fields<'_>, channel: Fields<'_>) -> Option<Self> {
        // 2.18 to 2.21, and 2.22 to 2.25.
        let produced = channel.maybe("workFifoSent").or_else(|| channel.maybe("workFifoProduced"))?;
        let consumed = comm.maybe("workFifoDone").or_else(|| comm.maybe("workFifoConsumed"))?;
        (consumed.size == 8 && produced.size == 4).then_some(Self { produced, consumed })
    }
}

/// What a communicator is found by, and where it is in the struct.
#[derive(Clone, Copy, Debug)]
enum Mark {
    /// `startMagic`, from 2.21 on.
    Magic(u64),
    /// `intraComm0`, which the first communicator of its process has point to itself.
    SelfPointer(u64),
}
