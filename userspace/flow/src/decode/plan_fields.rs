//! Where the fields of a plan's tasks and device work are, in the traced library's layout.

use serde::{Deserialize, Serialize};

use super::unsigned;
use nccl_library::{
    layouts::Layouts,
    nccl::{NcclVersion, PatRule},
};

/// A number, which may be a bit field.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct BitField {
    at: usize,
    size: usize,
    shift: u32,
    /// 64: all of it.
    width: u32,
}

impl BitField {
    pub(super) fn find(layouts: &Layouts, strukt: &str, path: &str, base: u64) -> Option<Self> {
        let field = layouts.field(strukt, path)?;
        let (shift, width) = field.bits.map_or((0, 64), |bits| (bits.shift, bits.width));
        Some(Self {
            at: usize::try_from(field.offset.checked_add(base)?).ok()?,
            size: usize::try_from(field.size).ok()?,
            shift,
            width,
        })
    }

    /// The number in these bytes of the struct.
    pub(super) fn of(self, bytes: &[u8]) -> Option<u64> {
        let word = unsigned(bytes.get(self.at..self.at.checked_add(self.size)?)?)?;
        let value = word.checked_shr(self.shift)?;
        Some(if self.width >= 64 { value } else { value & ((1 << self.width) - 1) })
    }

    /// The same as an `int`.
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
    pub(super) fn int_of(self, bytes: &[u8]) -> Option<i32> {
        Some((self.of(bytes)? as u32).cast_signed())
    }
}

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
    /// 2.28 and later.
    pub coll_api: Option<BitField>,
    pub root: BitField,
    pub bytes: BitField,
    /// 2.25 and later.
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
    /// `ncclDevWorkTypeBcast`: 2.29 and later.
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
    /// Numbers of `ncclDevRedOp_t` that the network sees as a sum: an average, and a sum of what was multiplied before.
    pub seen_as_sum: Vec<u64>,
}

impl WorkFields {
    /// Nothing where the library's device work is not such: it is from 2.22 on.
    pub fn from_layouts(layouts: &Layouts) -> Option<Self> {
        let list = layouts.struct_size("ncclWorkList")?;
        let coll = |path| BitField::find(layouts, "ncclDevWorkColl", path, list);
        let p2p = |path| BitField::find(layouts, "ncclDevWorkP2p", path, list);
        // Up to 2.23 one flag said that a buffer is registered, later one each for network and IPC.
        let registered = |now, before| p2p(now).or_else(|| p2p(before));
        let kind = |name| number(layouts, "ncclDevWorkType", name);
        Some(Self {
            kind: BitField::find(layouts, "ncclWorkList", "workType", 0)?,
            size: BitField::find(layouts, "ncclWorkList", "size", 0)?,
            coll: CollWorkFields {
                channel_lo: coll("channelLo")?,
                channel_hi: coll("channelHi")?,
                count_lo: coll("cbd.countLo")?,
                count_mid: coll("cbd.countMid")?,
                count_hi: coll("cbd.countHi")?,
                chunk_grains_lo: coll("cbd.chunkGrainsLo")?,
                chunk_grains_mid: coll("cbd.chunkGrainsMid")?,
                chunk_grains_hi: coll("cbd.chunkGrainsHi")?,
                collnet_count: coll("collnet.count")?,
                collnet_chunk_count: coll("collnet.chunkCount")?,
            },
            p2p: P2pWorkFields {
                n_p2p_channels: p2p("nP2pChannels")?,
                channel_base: p2p("channelBase")?,
                bytes: [p2p("recvBytes")?, p2p("sendBytes")?],
                peer: [p2p("recvRank")?, p2p("sendRank")?],
                n_channels: [p2p("nRecvChannels")?, p2p("nSendChannels")?],
                chunk_size: [p2p("recvChunkSize_u32fp8")?, p2p("sendChunkSize_u32fp8")?],
                is_ll: [p2p("recvProtoLL")?, p2p("sendProtoLL")?],
                is_registered: [
                    registered("recvNetReg", "recvRegistered")?,
                    registered("sendNetReg", "sendRegistered")?,
                ],
                parts_reversed: nccl_library::fields::parts_are_reversed(layouts),
            },
            kinds: [
                kind("ncclDevWorkTypeP2p")?,
                kind("ncclDevWorkTypeColl")?,
                kind("ncclDevWorkTypeCollReg")?,
            ],
            broadcast: kind("ncclDevWorkTypeBcast"),
        })
    }
}

fn number(layouts: &Layouts, enumeration: &str, name: &str) -> Option<u64> {
    layouts.enum_value(enumeration, name).and_then(|value| u64::try_from(value).ok())
}

impl PlanFields {
    /// Nothing where the library's plans are not such.
    pub fn from_layouts(layouts: &Layouts, version: Option<NcclVersion>) -> Option<Self> {
        let task = |path| BitField::find(layouts, "ncclTaskColl", path, 0);
        let p2p_task = |path| BitField::find(layouts, "ncclTaskP2p", path, 0);
        let batch = |path| BitField::find(layouts, "ncclDevWorkBatch", path, 0);
        Some(Self {
            coll_task: CollTaskFields {
                func: task("func")?,
                count: task("count")?,
                root: task("root")?,
                datatype: task("datatype")?,
                host_op: task("opHost")?,
                device_op: task("opDev.op")?,
                chunk_steps: task("chunkSteps")?,
                slice_steps: task("sliceSteps")?,
                algorithm: task("algorithm")?,
                protocol: task("protocol")?,
                is_collnet: task("isCollnet")?,
            },
            p2p_task: P2pTaskFields {
                func: p2p_task("func")?,
                coll_api: p2p_task("collAPI"),
                root: p2p_task("root")?,
                bytes: p2p_task("bytes")?,
                n_channels: p2p_task("nChannels"),
            },
            work: WorkFields::from_layouts(layouts)?,
            batch: BatchFields {
                next_jump: batch("nextJump")?,
                next_extends: batch("nextExtends")?,
                kind: batch("workType")?,
                base: batch("offsetBase")?,
                bits: batch("offsetBitset")?,
            },
            op_counts: {
                let (first, _) = nccl_library::fields::op_counts_extent(layouts)?;
                let p2p = layouts.field("ncclSharedResources", "p2pOpCount")?;
                let mut collectives = BitField::find(layouts, "ncclSharedResources", "collOpCount", 0)?;
                collectives.at = collectives.at.checked_sub(usize::try_from(first).ok()?)?;
                OpCountFields {
                    p2p_at: usize::try_from(p2p.offset.checked_sub(first)?).ok()?,
                    p2p_bytes: usize::try_from(p2p.size).ok()?,
                    collectives,
                }
            },
            pat: version.and_then(PatRule::of),
            seen_as_sum: ["ncclDevPreMulSum", "ncclDevSumPostDiv"]
                .iter()
                .filter_map(|name| number(layouts, "ncclDevRedOp_t", name))
                .collect(),
        })
    }
}
