//! Places of the fields of a plan's tasks and device work, in the traced library's layout.

use serde::{Deserialize, Serialize};

use nccl_library::{
    fields::{
        BitField, dev_work_batch as batch, dev_work_coll as coll, dev_work_p2p as p2p, enums,
        op_counts_extent, parts_are_reversed, shared_resources, task_coll, task_p2p, work_list,
    },
    layouts::Layouts,
    nccl::{NcclVersion, PatRule},
};

places! {
    /// Fields of `ncclTaskColl`.
    pub struct CollTaskFields {
        func: BitField = task_coll::FUNC;
        send_buffer: Option<BitField> = task_coll::SEND_BUFFER;
        recv_buffer: Option<BitField> = task_coll::RECV_BUFFER;
        count: BitField = task_coll::COUNT;
        root: BitField = task_coll::ROOT;
        datatype: BitField = task_coll::DATATYPE;
        host_op: BitField = task_coll::HOST_OP;
        device_op: BitField = task_coll::DEVICE_OP;
        chunk_steps: BitField = task_coll::CHUNK_STEPS;
        slice_steps: BitField = task_coll::SLICE_STEPS;
        algorithm: BitField = task_coll::ALGORITHM;
        protocol: BitField = task_coll::PROTOCOL;
        is_collnet: BitField = task_coll::IS_COLLNET;
    }
}

places! {
    /// Fields of `ncclTaskP2p`.
    pub struct P2pTaskFields {
        func: BitField = task_p2p::FUNC;
        coll_api: Option<BitField> = task_p2p::COLL_API;
        buffer: Option<BitField> = task_p2p::BUFFER;
        root: BitField = task_p2p::ROOT;
        bytes: BitField = task_p2p::BYTES;
        n_channels: Option<BitField> = task_p2p::N_CHANNELS;
    }
}

/// Fields of `ncclWorkList`, and of the `ncclDevWorkColl` or `ncclDevWorkP2p` behind it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WorkFields {
    pub kind: BitField,
    pub size: BitField,
    pub coll: CollWorkFields,
    pub p2p: P2pWorkFields,
    /// Numbers of `ncclDevWorkTypeP2p`, `ncclDevWorkTypeColl`, `ncclDevWorkTypeCollReg`.
    pub kinds: [u64; 3],
    /// Number of `ncclDevWorkTypeBcast`.
    pub broadcast: Option<u64>,
}

places! {
    /// Fields of `ncclDevWorkColl`.
    pub struct CollWorkFields {
        channel_lo: BitField = coll::CHANNEL_LO;
        channel_hi: BitField = coll::CHANNEL_HI;
        count_lo: BitField = coll::COUNT_LO;
        count_mid: BitField = coll::COUNT_MID;
        count_hi: BitField = coll::COUNT_HI;
        chunk_grains_lo: BitField = coll::CHUNK_GRAINS_LO;
        chunk_grains_mid: BitField = coll::CHUNK_GRAINS_MID;
        chunk_grains_hi: BitField = coll::CHUNK_GRAINS_HI;
        collnet_count: BitField = coll::COLLNET_COUNT;
        collnet_chunk_count: BitField = coll::COLLNET_CHUNK_COUNT;
    }
}

places! {
    /// Fields of `ncclDevWorkP2p`; in arrays the receive's is first, then the send's.
    pub struct P2pWorkFields {
        n_p2p_channels: BitField = p2p::N_P2P_CHANNELS;
        channel_base: BitField = p2p::CHANNEL_BASE;
        bytes: [BitField; 2] = [p2p::RECV_BYTES, p2p::SEND_BYTES];
        peer: [BitField; 2] = [p2p::RECV_RANK, p2p::SEND_RANK];
        n_channels: [BitField; 2] = [p2p::RECV_N_CHANNELS, p2p::SEND_N_CHANNELS];
        chunk_size: [BitField; 2] = [p2p::RECV_CHUNK_SIZE, p2p::SEND_CHUNK_SIZE];
        is_ll: [BitField; 2] = [p2p::RECV_IS_LL, p2p::SEND_IS_LL];
        is_registered: [BitField; 2] = [p2p::RECV_IS_REGISTERED, p2p::SEND_IS_REGISTERED];
        /// Parts go to channels in bit-reversed order.
        parts_reversed: bool = parts_are_reversed;
    }
}

places! {
    /// Fields of `ncclDevWorkBatch`.
    pub struct BatchFields {
        next_jump: BitField = batch::NEXT_JUMP;
        next_extends: BitField = batch::NEXT_EXTENDS;
        kind: BitField = batch::WORK_TYPE;
        base: BitField = batch::OFFSET_BASE;
        bits: BitField = batch::OFFSET_BITS;
    }
}

/// Fields `p2pOpCount` and `collOpCount` of `ncclSharedResources`, from the beginning of the first.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct OpCountFields {
    pub p2p_at: usize,
    pub p2p_bytes: usize,
    pub collectives: BitField,
}

/// Fields and rules that a plan's nodes are decoded with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanFields {
    pub coll_task: CollTaskFields,
    pub p2p_task: P2pTaskFields,
    pub work: WorkFields,
    pub batch: BatchFields,
    pub op_counts: OpCountFields,
    /// Rule for the number of messages of PAT's ops; `None` where the version's rule is not known.
    pub pat: Option<PatRule>,
    /// Numbers of `ncclDevRedOp_t` that the network sees as a sum: an average, and a sum of elements that
    /// were multiplied before.
    pub seen_as_sum: Vec<u64>,
}

impl WorkFields {
    /// Finds the fields in the library's layouts; `None` where its device work is of another kind (before
    /// 2.22).
    pub fn from_layouts(layouts: &Layouts) -> Option<Self> {
        let list = work_list::STRUCT.size(layouts).ok()?;
        Some(Self {
            kind: work_list::WORK_TYPE.find_bits(layouts, 0)?,
            size: work_list::SIZE.find_bits(layouts, 0)?,
            // The device work is behind the node.
            coll: CollWorkFields::find(layouts, list).ok()?,
            p2p: P2pWorkFields::find(layouts, list).ok()?,
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
    /// Finds the fields in the library's layouts; `None` where its plans are of another kind.
    pub fn from_layouts(layouts: &Layouts, version: Option<NcclVersion>) -> Option<Self> {
        Some(Self {
            coll_task: CollTaskFields::find(layouts, 0).ok()?,
            p2p_task: P2pTaskFields::find(layouts, 0).ok()?,
            work: WorkFields::from_layouts(layouts)?,
            batch: BatchFields::find(layouts, 0).ok()?,
            op_counts: {
                let (first, _) = op_counts_extent(layouts)?;
                let p2p = shared_resources::P2P_OP_COUNT.find(layouts)?;
                let collectives =
                    shared_resources::COLL_OP_COUNT.find_bits(layouts, 0)?.in_copy_from(first)?;
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
