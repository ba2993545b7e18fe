//! Offsets of fields of `ncclComm` and of structs that it points to, and the marks by which a communicator is
//! found.

use super::places::{self, Places, Wanted};
use inspect::memory::Needle;
use nccl_library::{
    fields::{ArrayField, IntField, MissingField, channel, comm, counts_always, shared_resources},
    layouts::Layouts,
    nccl::{NameTables, NcclVersion},
};

/// `NCCL_MAGIC`, src/include/comm.h.
pub(super) const MAGIC: u64 = 0x0280_0280_0280_0280;

/// Fields of `ncclComm` that are read together.
const COMM: [Wanted; 23] = [
    (comm::START_MAGIC, false),
    (comm::END_MAGIC, false),
    (comm::HASH, true),
    (comm::RANK, true),
    (comm::N_RANKS, true),
    (comm::NODE, true),
    (comm::N_NODES, true),
    (comm::LOCAL_RANK, true),
    (comm::CUDA_DEV, true),
    (comm::NVML_DEV, false),
    (comm::N_CHANNELS, true),
    (comm::PROXY_STATE, true),
    (comm::SHARED_RESOURCES, true),
    (comm::INTRA_NEXT, false),
    (comm::OP_COUNT, false),
    (comm::COLL_OP_COUNT, false),
    (comm::INIT_STATE, false),
    (comm::ASYNC_RESULT, false),
    (comm::ABORT_FLAG, false),
    (comm::FINALIZE_CALLED, false),
    (comm::DESTROY_FLAG, false),
    (comm::REVOKED_FLAG, false),
    (comm::NAME, false),
];

/// Fields of `ncclComm` that tell how far it is made.
const IN_MAKING: [Wanted; 6] = [
    (comm::START_MAGIC, false),
    (comm::END_MAGIC, false),
    (comm::HASH, true),
    (comm::N_RANKS, true),
    (comm::N_CHANNELS, true),
    (comm::INIT_STATE, false),
];

/// Fields of `ncclComm` that tell whether another one may be being split off.
const CHILDREN: [Wanted; 2] = [(comm::CHILD_ABORT_FLAG, false), (comm::SPLIT_SHARE, false)];

#[derive(Debug)]
pub(super) struct CommLayout {
    pub(super) size: u64,
    /// Word by which a communicator is found: `startMagic`, from 2.21 on; before, `intraComm0`, which the
    /// first communicator of its process has point to itself.
    pub(super) needle: Needle,
    /// Offset of this word.
    mark: u64,
    /// Offsets of the fields [`COMM`].
    pub(super) comm: Places<23>,
    /// Offsets of the fields [`IN_MAKING`].
    pub(super) in_making: Places<6>,
    /// Offsets of the fields [`CHILDREN`].
    pub(super) children: Places<2>,
    /// `collOpCount` is where communicators that share resources count together: before 2.24.
    pub(super) shares_coll_op_count: bool,
    pub(super) seq_number: Option<ArrayField>,
    pub(super) channels: ArrayField,
    pub(super) ring_prev: IntField,
    pub(super) ring_next: IntField,
    pub(super) user_ranks: IntField,
    pub(super) tree_up: Option<IntField>,
    pub(super) tree_down: Option<ArrayField>,
    pub(super) peers: IntField,
    pub(super) shared_coll_op_count: Option<IntField>,
    pub(super) shared_p2p_op_count: Option<ArrayField>,
    /// Plans that CUDA graphs hold: in the communicator, or in its shared resources.
    pub(super) persistent_refs: [Option<IntField>; 2],
    /// Counters of each channel's work: the host's of what was put into the FIFO of work, and the GPU's of
    /// what kernels are through with (src/enqueue.cc, waitWorkFifoAvailable): a field of the communicator, a
    /// pointer to a `uint32_t` for each channel. Up to 2.25: later the host keeps no word that the GPU
    /// writes.
    pub(super) work: Option<(IntField, IntField)>,
    pub(super) names: NameTables,
}

impl CommLayout {
    pub(super) fn new(layouts: &Layouts, version: Option<NcclVersion>) -> Result<Self, MissingField> {
        let start =
            comm::START_MAGIC.find_int(layouts).filter(|_| comm::END_MAGIC.find_int(layouts).is_some());
        let (needle, mark) = match (start, comm::INTRA_COMM_0.find_int(layouts)) {
            (Some(start), _) => (Needle::Word(MAGIC), start.offset()),
            (None, Some(own)) => (Needle::SelfPointer(own.offset()), own.offset()),
            (None, None) => return Err(comm::START_MAGIC.missing()),
        };
        let counts_always = counts_always(version, Some(layouts)) == Some(true);
        let seq_number = comm::SEQ_NUMBER.array(layouts).ok();
        Ok(Self {
            size: comm::STRUCT.size(layouts)?,
            needle,
            mark,
            comm: places::find(COMM, layouts)?,
            in_making: places::find(IN_MAKING, layouts)?,
            children: places::find(CHILDREN, layouts)?,
            shares_coll_op_count: !comm::COLL_OP_COUNT.exists(layouts),
            seq_number: seq_number.filter(|array| counts_always && array.elem_size == 8 && array.count <= 64),
            channels: comm::CHANNELS.array(layouts)?,
            ring_prev: channel::RING_PREV.int(layouts)?,
            ring_next: channel::RING_NEXT.int(layouts)?,
            user_ranks: channel::RING_USER_RANKS.int(layouts)?,
            tree_up: channel::TREE_UP.find_int(layouts),
            tree_down: channel::TREE_DOWN.array(layouts).ok(),
            peers: channel::PEERS.int(layouts)?,
            shared_coll_op_count: shared_resources::COLL_OP_COUNT.find_int(layouts),
            shared_p2p_op_count: shared_resources::P2P_OP_COUNT.array(layouts).ok(),
            persistent_refs: [comm::PERSISTENT_REFS, shared_resources::PERSISTENT_REFS]
                .map(|field| field.find_int(layouts)),
            work: channel::WORK_PRODUCED
                .find_int(layouts)
                .zip(comm::WORK_CONSUMED.find_int(layouts))
                .filter(|(produced, consumed)| consumed.size() == 8 && produced.size() == 4),
            names: NameTables::from_layouts(layouts),
        })
    }

    pub(super) fn result(&self, value: Option<u64>) -> Option<String> {
        let value = value?;
        let name = i64::try_from(value).ok().and_then(|value| self.names.result(value));
        Some(name.map_or_else(|| format!("ncclResult_t {value}"), ToString::to_string))
    }

    pub(super) fn channel(&self, comm: u64, channel: u32) -> Option<u64> {
        let ArrayField { offset, count, elem_size } = self.channels;
        (u64::from(channel) < count).then(|| comm + offset + u64::from(channel) * elem_size)
    }

    pub(super) fn has_magics(&self) -> bool {
        self.needle == Needle::Word(MAGIC)
    }

    /// Returns the communicator that a mark at `at` may belong to.
    pub(super) fn candidate(&self, at: u64) -> Option<u64> {
        at.checked_sub(self.mark)
    }
}
