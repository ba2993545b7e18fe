//! Places of the fields of a plan's tasks and device work, in the traced library's layout.

use serde::{Deserialize, Serialize};

use crate::wire::LAUNCH_ARGS;
use nccl_library::{
    fields::{
        BitField, ce_coll_args, dev_work_batch as batch, dev_work_bcast, dev_work_coll as coll,
        dev_work_p2p as p2p, enums, op_counts_extent, parts_are_reversed, rma_args, shared_resources,
        sym_dev_args, symk_channel_range, symk_dev_work, symk_dev_work_args, task_coll, task_p2p, task_rma,
        work_list,
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
    #[serde(default)]
    pub broadcast_work: Option<BroadcastWorkFields>,
}

places! {
    /// Fields of `ncclDevWorkBcast`.
    pub struct BroadcastWorkFields {
        ring_depth: BitField = dev_work_bcast::RING_DEPTH;
        bytes: BitField = dev_work_bcast::BYTES;
    }
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

places! {
    /// Fields of `ncclSymDevArgs`, of which the last bytes are copied (2.27).
    pub struct SymmetricArgsFields {
        count: BitField = sym_dev_args::COUNT;
        root: BitField = sym_dev_args::ROOT;
        send_buffer: BitField = sym_dev_args::SEND_BUFFER;
        recv_buffer: BitField = sym_dev_args::RECV_BUFFER;
    }
}

places! {
    /// Fields of `ncclSymkDevWork` (2.28 and later).
    pub struct SymmetricWorkFields {
        count: BitField = symk_dev_work::COUNT;
        root: BitField = symk_dev_work::ROOT;
        send_window: BitField = symk_dev_work::SEND_WINDOW;
        recv_window: BitField = symk_dev_work::RECV_WINDOW;
        send_offset: BitField = symk_dev_work::SEND_OFFSET;
        recv_offset: BitField = symk_dev_work::RECV_OFFSET;
    }
}

places! {
    /// Fields of `ncclCeCollArgs` (2.28 and later).
    pub struct CopyFields {
        func: BitField = ce_coll_args::FUNC;
        root: BitField = ce_coll_args::ROOT;
        datatype: Option<BitField> = ce_coll_args::DATATYPE;
        count: BitField = ce_coll_args::COUNT;
        element_size: BitField = ce_coll_args::ELEMENT_SIZE;
        send_buffer: BitField = ce_coll_args::SEND_BUFFER;
        recv_buffer: BitField = ce_coll_args::RECV_BUFFER;
        send_window: BitField = ce_coll_args::SEND_WINDOW;
        recv_window: BitField = ce_coll_args::RECV_WINDOW;
    }
}

places! {
    /// Fields of `ncclRmaArgs` (2.29 and later).
    pub struct OneSidedArgsFields {
        func: BitField = rma_args::FUNC;
        n_tasks: BitField = rma_args::N_TASKS;
    }
}

places! {
    /// Fields of `ncclTaskRma` (2.29 and later).
    pub struct OneSidedTaskFields {
        func: BitField = task_rma::FUNC;
        count: BitField = task_rma::COUNT;
        datatype: BitField = task_rma::DATATYPE;
        bytes: BitField = task_rma::BYTES;
        source: BitField = task_rma::SOURCE;
        source_window: BitField = task_rma::SOURCE_WINDOW;
        source_offset: BitField = task_rma::SOURCE_OFFSET;
        peer: BitField = task_rma::PEER;
        peer_window: BitField = task_rma::PEER_WINDOW;
        peer_offset: BitField = task_rma::PEER_OFFSET;
        n_peers: BitField = task_rma::N_PEERS;
    }
}

/// Sizes of what the arguments of a kernel on symmetric memory consist of (2.28 and later).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SymmetricArgsSizes {
    /// Bytes of `ncclSymkDevWorkArgs`, of a channel's range, and of a call's work.
    sizes: [u64; 3],
}

impl SymmetricArgsSizes {
    fn find(layouts: &Layouts) -> Option<Self> {
        let structs = [symk_dev_work_args::STRUCT, symk_channel_range::STRUCT, symk_dev_work::STRUCT];
        let [args, range, work] = structs.map(|strukt| strukt.size(layouts).ok().filter(|size| *size != 0));
        Some(Self { sizes: [args?, range?, work?] })
    }

    /// Returns the number of calls in arguments of `size` bytes for as many channels: `calcArgsSize`
    /// (src/include/sym_kernels.h, 2.28 to 2.30).
    pub fn calls(self, size: u64, channels: u64) -> Option<u64> {
        let [args, range, work] = self.sizes;
        let aligned = |bytes: u64| bytes.checked_next_multiple_of(16);
        let before = aligned(args)?.checked_add(aligned(range.checked_mul(channels)?)?)?;
        let works = size.checked_sub(before)?;
        works.is_multiple_of(work).then_some(works / work).filter(|calls| *calls != 0)
    }
}

/// Fields of the arguments of launches without proxy ops, as far as the version has them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LaunchFields {
    pub sym: Option<SymmetricArgsFields>,
    /// Bytes of `ncclSymDevArgs`.
    pub sym_args_size: Option<u64>,
    pub symk: Option<SymmetricWorkFields>,
    pub symk_args: Option<SymmetricArgsSizes>,
    pub copy: Option<CopyFields>,
    pub rma: Option<OneSidedArgsFields>,
    pub task: Option<OneSidedTaskFields>,
}

impl LaunchFields {
    /// Finds them; `None` in versions that have no such launches, or where nothing of their arguments is
    /// known.
    pub fn from_layouts(layouts: &Layouts) -> Option<Self> {
        let sym_args_size = sym_dev_args::STRUCT.size(layouts).ok();
        // Only the last bytes of the arguments are copied.
        let left_out = sym_args_size.map_or(0, |size| size.saturating_sub(LAUNCH_ARGS.into()));
        let found = Self {
            sym: SymmetricArgsFields::find(layouts, 0).ok().and_then(|of| of.in_copy_from(left_out)),
            sym_args_size,
            symk: SymmetricWorkFields::find(layouts, 0).ok(),
            symk_args: SymmetricArgsSizes::find(layouts),
            copy: CopyFields::find(layouts, 0).ok(),
            rma: OneSidedArgsFields::find(layouts, 0).ok(),
            task: OneSidedTaskFields::find(layouts, 0).ok(),
        };
        let is_any =
            found.sym.is_some() || found.symk.is_some() || found.copy.is_some() || found.task.is_some();
        is_any.then_some(found)
    }
}

impl SymmetricArgsFields {
    fn in_copy_from(self, first: u64) -> Option<Self> {
        Some(Self {
            count: self.count.in_copy_from(first)?,
            root: self.root.in_copy_from(first)?,
            send_buffer: self.send_buffer.in_copy_from(first)?,
            recv_buffer: self.recv_buffer.in_copy_from(first)?,
        })
    }
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
    /// Fields of launches without proxy ops.
    #[serde(default)]
    pub launch: Option<LaunchFields>,
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
            broadcast_work: BroadcastWorkFields::find(layouts, list).ok(),
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
            launch: LaunchFields::from_layouts(layouts),
        })
    }
}
