//! Where the fields of `ncclComm` and of what hangs on it are, and the marks that one is found by.

use std::collections::BTreeMap;

use crate::memory::Needle;
use nccl_library::{
    elf::RuntimeAddr,
    fields::{ArrayField, IntField, MissingField, channel, comm, counts_always, enums, shared_resources},
    layouts::Layouts,
    nccl::{NameTables, NcclVersion},
};

/// `NCCL_MAGIC`, src/include/comm.h.
pub(super) const MAGIC: u64 = 0x0280_0280_0280_0280;

/// Where the fields of `ncclComm` are.
#[derive(Debug)]
pub(crate) struct CommLayout {
    pub(super) size: u64,
    mark: Mark,
    pub(super) magics: Option<[IntField; 2]>,
    pub(super) hash: IntField,
    pub(super) rank: IntField,
    pub(super) n_ranks: IntField,
    pub(super) n_channels: IntField,
    pub(super) node: IntField,
    pub(super) n_nodes: IntField,
    pub(super) local_rank: IntField,
    pub(super) cuda_dev: IntField,
    pub(super) nvml_dev: Option<IntField>,
    pub(super) proxy_state: IntField,
    pub(super) shared_res: IntField,
    pub(super) intra_next: Option<IntField>,
    pub(super) op_count: Option<IntField>,
    pub(super) coll_op_count: Option<IntField>,
    pub(super) seq_number: Option<ArrayField>,
    pub(super) init_state: Option<IntField>,
    pub(super) async_result: Option<IntField>,
    pub(super) abort_flag: Option<IntField>,
    pub(super) finalize_called: Option<IntField>,
    pub(super) destroy_flag: Option<IntField>,
    pub(super) revoked_flag: Option<IntField>,
    pub(super) comm_name: Option<IntField>,
    pub(super) channels: ArrayField,
    pub(super) ring_prev: IntField,
    pub(super) ring_next: IntField,
    pub(super) user_ranks: IntField,
    pub(super) tree_up: Option<IntField>,
    pub(super) tree_down: Option<ArrayField>,
    pub(crate) peers: IntField,
    pub(super) shared_coll_op_count: Option<IntField>,
    pub(super) shared_p2p_op_count: Option<ArrayField>,
    pub(super) work: Option<WorkLayout>,
    pub(super) names: NameTables,
    /// Values of `ncclResult_t` by name.
    pub(super) results: BTreeMap<u64, String>,
}

impl CommLayout {
    pub(crate) fn new(layouts: &Layouts, version: Option<NcclVersion>) -> Result<Self, MissingField> {
        let size = comm::STRUCT.size(layouts)?;
        let magics = comm::START_MAGIC.find_int(layouts).zip(comm::END_MAGIC.find_int(layouts));
        let magics = magics.map(|(start, end)| [start, end]);
        let mark = match (magics, comm::INTRA_COMM_0.find_int(layouts)) {
            (Some([start, _]), _) => Mark::Magic(start.offset()),
            (None, Some(own)) => Mark::SelfPointer(own.offset()),
            (None, None) => return Err(comm::START_MAGIC.missing()),
        };
        let counts_always = counts_always(version, Some(layouts)) == Some(true);
        let results = layouts.enums.get(enums::RESULT).into_iter().flat_map(|results| &results.values);
        Ok(Self {
            size,
            mark,
            magics,
            hash: comm::HASH.int(layouts)?,
            rank: comm::RANK.int(layouts)?,
            n_ranks: comm::N_RANKS.int(layouts)?,
            n_channels: comm::N_CHANNELS.int(layouts)?,
            node: comm::NODE.int(layouts)?,
            n_nodes: comm::N_NODES.int(layouts)?,
            local_rank: comm::LOCAL_RANK.int(layouts)?,
            cuda_dev: comm::CUDA_DEV.int(layouts)?,
            nvml_dev: comm::NVML_DEV.find_int(layouts),
            proxy_state: comm::PROXY_STATE.int(layouts)?,
            shared_res: comm::SHARED_RESOURCES.int(layouts)?,
            intra_next: comm::INTRA_NEXT.find_int(layouts),
            op_count: comm::OP_COUNT.find_int(layouts),
            coll_op_count: comm::COLL_OP_COUNT.find_int(layouts),
            seq_number: comm::SEQ_NUMBER
                .array(layouts)
                .ok()
                .filter(|array| counts_always && array.elem_size == 8 && array.count <= 64),
            init_state: comm::INIT_STATE.find_int(layouts),
            async_result: comm::ASYNC_RESULT.find_int(layouts),
            abort_flag: comm::ABORT_FLAG.find_int(layouts),
            finalize_called: comm::FINALIZE_CALLED.find_int(layouts),
            destroy_flag: comm::DESTROY_FLAG.find_int(layouts),
            revoked_flag: comm::REVOKED_FLAG.find_int(layouts),
            comm_name: comm::NAME.find_int(layouts),
            channels: comm::CHANNELS.array(layouts)?,
            ring_prev: channel::RING_PREV.int(layouts)?,
            ring_next: channel::RING_NEXT.int(layouts)?,
            user_ranks: channel::RING_USER_RANKS.int(layouts)?,
            tree_up: channel::TREE_UP.find_int(layouts),
            tree_down: channel::TREE_DOWN.array(layouts).ok(),
            peers: channel::PEERS.int(layouts)?,
            shared_coll_op_count: shared_resources::COLL_OP_COUNT.find_int(layouts),
            shared_p2p_op_count: shared_resources::P2P_OP_COUNT.array(layouts).ok(),
            work: WorkLayout::new(layouts),
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
        let ArrayField { offset, count, elem_size } = self.channels;
        (u64::from(channel) < count).then(|| RuntimeAddr(comm.0 + offset + u64::from(channel) * elem_size))
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

/// Where host and GPU count the work of each channel: what was put into the FIFO of work, and what kernels
/// are through with (src/enqueue.cc, waitWorkFifoAvailable). Up to 2.25: later the host keeps no word that
/// the GPU writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkLayout {
    /// In each channel.
    pub(super) produced: IntField,
    /// In the communicator: a pointer to a `uint32_t` for each channel.
    pub(super) consumed: IntField,
}

impl WorkLayout {
    fn new(layouts: &Layouts) -> Option<Self> {
        let produced = channel::WORK_PRODUCED.find_int(layouts)?;
        let consumed = comm::WORK_CONSUMED.find_int(layouts)?;
        (consumed.size() == 8 && produced.size() == 4).then_some(Self { produced, consumed })
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
