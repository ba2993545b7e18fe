//! Where the fields of a plan's tasks and device work are, in the traced library's layout.

use serde::{Deserialize, Serialize};

use nccl_library::{
    fields::{
        BitField, FieldRef, dev_work_batch as batch, dev_work_coll as coll, dev_work_p2p as p2p, enums,
        op_counts_extent, parts_are_reversed, shared_resources, task_coll, task_p2p, work_list,
    },
    layouts::Layouts,
    nccl::{NcclVersion, PatRule},
};

/// `ncclTaskColl`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CollTaskFields {
    pub func: BitField,
    pub count: BitField,
    pub root: BitField,
    pub datatype: BitField,
    pub host_op: BitField,
    pub device_op: BitField,
    pub chunk_steps: BitField,
    pub slice_steps: BitField,
    pub algorithm: BitField,
    pub protocol: BitField,
    pub is_collnet: BitField,
}

/// `ncclTaskP2p`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct P2pTaskFields {
    pub func: BitField,
    pub coll_api: Option<BitField>,
    pub root: BitField,
    pub bytes: BitField,
    pub n_channels: Option<BitField>,
}

/// `ncclWorkList`, and the `ncclDevWorkColl` or `ncclDevWorkP2p` behind it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WorkFields {
    pub kind: BitField,
    pub size: BitField,
    pub coll: CollWorkFields,
    pub p2p: P2pWorkFields,
    /// `ncclDevWorkTypeP2p`, `ncclDevWorkTypeColl`, `ncclDevWorkTypeCollReg`.
    pub kinds: [u64; 3],
    /// `ncclDevWorkTypeBcast`.
    pub broadcast: Option<u64>,
}

/// `ncclDevWorkColl`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CollWorkFields {
    pub channel_lo: BitField,
    pub channel_hi: BitField,
    pub count_lo: BitField,
    pub count_mid: BitField,
    pub count_hi: BitField,
    pub chunk_grains_lo: BitField,
    pub chunk_grains_mid: BitField,
    pub chunk_grains_hi: BitField,
    pub collnet_count: BitField,
    pub collnet_chunk_count: BitField,
}

/// `ncclDevWorkP2p`; first of the receive, then of the send.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct P2pWorkFields {
    pub n_p2p_channels: BitField,
    pub channel_base: BitField,
    pub bytes: [BitField; 2],
    pub peer: [BitField; 2],
    pub n_channels: [BitField; 2],
    pub chunk_size: [BitField; 2],
    pub is_ll: [BitField; 2],
    pub is_registered: [BitField; 2],
    /// Parts go to channels in bit-reversed order.
    pub parts_reversed: bool,
}

/// `ncclDevWorkBatch`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct BatchFields {
    pub next_jump: BitField,
    pub next_extends: BitField,
    pub kind: BitField,
    pub base: BitField,
    pub bits: BitField,
}

/// `p2pOpCount` and `collOpCount` of `ncclSharedResources`, from the beginning of the first.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct OpCountFields {
    pub p2p_at: usize,
    pub p2p_bytes: usize,
    pub collectives: BitField,
}

/// Everything that a plan's nodes are decoded with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanFields {
    pub coll_task: CollTaskFields,
    pub p2p_task: P2pTaskFields,
    pub work: WorkFields,
    pub batch: BatchFields,
    pub op_counts: OpCountFields,
    /// How many messages PAT's ops have; nothing where the version's way is not known.
    pub pat: Option<PatRule>,
    /// Numbers of `ncclDevRedOp_t` that the network sees as a sum: an average, and a sum of what was
    /// multiplied before.
    pub seen_as_sum: Vec<u64>,
}

impl WorkFields {
    /// Nothing where the library's device work is not such: it is from 2.22 on.
    pub fn from_layouts(layouts: &Layouts) -> Option<Self> {
        let list = work_list::STRUCT.size(layouts).ok()?;
        // The device work is behind the node.
        let work = |field: FieldRef| field.find_bits(layouts, list);
        Some(Self {
            kind: work_list::WORK_TYPE.find_bits(layouts, 0)?,
            size: work_list::SIZE.find_bits(layouts, 0)?,
            coll: CollWorkFields {
                channel_lo: work(coll::CHANNEL_LO)?,
                channel_hi: work(coll::CHANNEL_HI)?,
                count_lo: work(coll::COUNT_LO)?,
                count_mid: work(coll::COUNT_MID)?,
                count_hi: work(coll::COUNT_HI)?,
                chunk_grains_lo: work(coll::CHUNK_GRAINS_LO)?,
                chunk_grains_mid: work(coll::CHUNK_GRAINS_MID)?,
                chunk_grains_hi: work(coll::CHUNK_GRAINS_HI)?,
                collnet_count: work(coll::COLLNET_COUNT)?,
                collnet_chunk_count: work(coll::COLLNET_CHUNK_COUNT)?,
            },
            p2p: P2pWorkFields {
                n_p2p_channels: work(p2p::N_P2P_CHANNELS)?,
                channel_base: work(p2p::CHANNEL_BASE)?,
                bytes: [work(p2p::RECV_BYTES)?, work(p2p::SEND_BYTES)?],
                peer: [work(p2p::RECV_RANK)?, work(p2p::SEND_RANK)?],
                n_channels: [work(p2p::RECV_N_CHANNELS)?, work(p2p::SEND_N_CHANNELS)?],
                chunk_size: [work(p2p::RECV_CHUNK_SIZE)?, work(p2p::SEND_CHUNK_SIZE)?],
                is_ll: [work(p2p::RECV_IS_LL)?, work(p2p::SEND_IS_LL)?],
                is_registered: [work(p2p::RECV_IS_REGISTERED)?, work(p2p::SEND_IS_REGISTERED)?],
                parts_reversed: parts_are_reversed(layouts),
            },
            kinds: [
                enums::WORK_P2P.find_unsigned(layouts)?,
                enums::WORK_COLL.find_unsigned(layouts)?,
                enums::WORK_COLL_REGISTERED.find_unsigned(layouts)?,
            ],
            broadcast: enums::WORK_BROADCAST.find_unsigned(layouts),
        })
    }
}

impl PlanFields {
    /// Nothing where the library's plans are not such.
    pub fn from_layouts(layouts: &Layouts, version: Option<NcclVersion>) -> Option<Self> {
        let of = |field: FieldRef| field.find_bits(layouts, 0);
        Some(Self {
            coll_task: CollTaskFields {
                func: of(task_coll::FUNC)?,
                count: of(task_coll::COUNT)?,
                root: of(task_coll::ROOT)?,
                datatype: of(task_coll::DATATYPE)?,
                host_op: of(task_coll::HOST_OP)?,
                device_op: of(task_coll::DEVICE_OP)?,
                chunk_steps: of(task_coll::CHUNK_STEPS)?,
                slice_steps: of(task_coll::SLICE_STEPS)?,
                algorithm: of(task_coll::ALGORITHM)?,
                protocol: of(task_coll::PROTOCOL)?,
                is_collnet: of(task_coll::IS_COLLNET)?,
            },
            p2p_task: P2pTaskFields {
                func: of(task_p2p::FUNC)?,
                coll_api: of(task_p2p::COLL_API),
                root: of(task_p2p::ROOT)?,
                bytes: of(task_p2p::BYTES)?,
                n_channels: of(task_p2p::N_CHANNELS),
            },
            work: WorkFields::from_layouts(layouts)?,
            batch: BatchFields {
                next_jump: of(batch::NEXT_JUMP)?,
                next_extends: of(batch::NEXT_EXTENDS)?,
                kind: of(batch::WORK_TYPE)?,
                base: of(batch::OFFSET_BASE)?,
                bits: of(batch::OFFSET_BITS)?,
            },
            op_counts: {
                let (first, _) = op_counts_extent(layouts)?;
                let p2p = shared_resources::P2P_OP_COUNT.find(layouts)?;
                let collectives = of(shared_resources::COLL_OP_COUNT)?.in_copy_from(first)?;
                OpCountFields {
                    p2p_at: usize::try_from(p2p.offset.checked_sub(first)?).ok()?,
                    p2p_bytes: usize::try_from(p2p.size).ok()?,
                    collectives,
                }
            },
            pat: version.and_then(PatRule::of),
            seen_as_sum: [enums::PRE_MUL_SUM, enums::SUM_POST_DIV]
                .iter()
                .filter_map(|operator| operator.find_unsigned(layouts))
                .collect(),
        })
    }
}
