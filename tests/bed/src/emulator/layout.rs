//! Offsets of the fields of NCCL's device-side structs, from the library's own debugging information.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use nccl_library::elf::Image;
use nccl_library::nccl::PatRule;
use nccl_library::{
    layouts::Layouts,
    symbols::{Request, resolve},
};

use super::memory;
use super::profiler::Profiler;

/// A number in a struct: bytes, and the bits in them that count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) offset: usize,
    size: usize,
    shift: u32,
    width: u32,
}

impl Place {
    pub(crate) fn get(self, base: usize) -> u64 {
        let value = memory::read(base + self.offset, self.size) >> self.shift;
        if self.width < 64 { value & ((1 << self.width) - 1) } else { value }
    }

    pub(crate) fn get_usize(self, base: usize) -> usize {
        self.get(base) as usize
    }

    /// A number with a sign.
    pub(crate) fn get_i32(self, base: usize) -> i32 {
        let unused = 64 - self.width;
        ((self.get(base) << unused).cast_signed() >> unused) as i32
    }

    pub(crate) fn set(self, base: usize, value: u64) {
        memory::write(base + self.offset, self.size, value);
    }
}

/// A struct's size and some of its fields.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $path:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $name {
            #[allow(dead_code, reason = "not every struct stands in an array")]
            pub(crate) size: usize,
            $(pub(crate) $field: Place,)*
        }

        impl $name {
            /// From the first of these structs that the library has.
            fn find(layouts: &Layouts, names: &[&str]) -> Result<Self> {
                let name = names
                    .iter()
                    .find(|name| layouts.struct_size(name).is_some())
                    .ok_or_else(|| anyhow!("no layout of struct {}", names.join(" or ")))?;
                Ok(Self {
                    size: usize::try_from(layouts.struct_size(name).context("a struct without size")?)?,
                    $($field: place(layouts, name, $path)?,)*
                })
            }
        }
    };
}

layout! {
    /// `ncclKernelComm`, before 2.28 `ncclDevComm`
    Comm {
        rank: "rank",
        ranks: "nRanks",
        buff_sizes: "buffSizes[0]",
        abort_flag: "abortFlag",
        channels: "channels",
    }
}

layout! {
    /// `ncclDevChannel`
    Channel {
        peers: "peers",
        ring_prev: "ring.prev",
        ring_next: "ring.next",
        ring_user_ranks: "ring.userRanks",
        ring_index: "ring.index",
        tree_up: "tree.up",
        tree_down: "tree.down[0]",
        work_fifo_done: "workFifoDone",
    }
}

layout! {
    /// `ncclDevChannelPeer`
    Peer { send: "send[0]", recv: "recv[0]", }
}

layout! {
    /// `ncclConnInfo`
    Conn {
        buffs: "buffs[0]",
        tail: "tail",
        head: "head",
        step: "step",
    }
}

layout! {
    /// `ncclConnFifo`
    Fifo { mode: "mode", offset: "offset", bytes: "size", }
}

layout! {
    /// `ncclDevKernelArgs` (2.22 and later)
    Args {
        comm: "comm",
        channel_mask: "channelMask",
        storage: "workStorageType",
        work_mask: "workMask",
        work_buf: "workBuf",
    }
}

layout! {
    /// `ncclDevWorkBatch`
    Batch {
        next_jump: "nextJump",
        next_extends: "nextExtends",
        kind: "workType",
        func: "funcId",
        offset_base: "offsetBase",
        offset_bits: "offsetBitset",
    }
}

layout! {
    /// `ncclDevWorkColl`
    Coll {
        channel_lo: "channelLo",
        channel_hi: "channelHi",
        reg_used: "regUsed",
        root: "root",
        recv: "recvbuff",
        send: "sendbuff",
        count_lo: "cbd.countLo",
        count_mid: "cbd.countMid",
        count_hi: "cbd.countHi",
        grains_lo: "cbd.chunkGrainsLo",
        grains_mid: "cbd.chunkGrainsMid",
        grains_hi: "cbd.chunkGrainsHi",
    }
}

layout! {
    /// `ncclDevWorkP2p`
    P2p {
        send_addr: "sendAddr",
        recv_addr: "recvAddr",
        send_bytes: "sendBytes",
        recv_bytes: "recvBytes",
        send_rank: "sendRank",
        recv_rank: "recvRank",
        all_channels: "nP2pChannels",
        channel_base: "channelBase",
        send_channels: "nSendChannels",
        recv_channels: "nRecvChannels",
        send_chunk: "sendChunkSize_u32fp8",
        recv_chunk: "recvChunkSize_u32fp8",
        send_ll: "sendProtoLL",
        recv_ll: "recvProtoLL",
    }
}

layout! {
    /// `ncclDevWorkBcast` (2.29 and later)
    Bcast {
        ring_depth: "ringDepth",
        chunk_size: "chunkSize",
        send: "sendbuff",
        recv: "recvbuff",
        bytes: "bytes",
        bytes_done: "bytes_done",
    }
}

layout! {
    /// `ncclWork` (before 2.22), with the header inside it
    OldWork {
        next: "header.workNext",
        acks: "header.doneAcks",
        func: "header.funcIndex",
        is_last: "header.isLast",
        in_fifo: "header.inFifo",
        kind: "header.type",
        elems: "elems",
        p2p_elems: "p2pElems",
    }
}

layout! {
    /// `ncclWorkElem`
    OldElem {
        is_used: "isUsed",
        root: "root",
        send: "sendbuff",
        recv: "recvbuff",
        count: "count",
        channels: "nChannels",
        block: "bid",
        warps: "nWarps",
    }
}

layout! {
    /// `ncclWorkElem`: a channel's share, from 2.20 on
    OldShare {
        chunk_count: "chunkCount",
        work_count: "workCount",
        last_chunk_count: "lastChunkCount",
        work_offset: "workOffset",
    }
}

layout! {
    /// `ncclWorkElemP2p`
    OldP2p {
        peer: "peer",
        proto: "proto",
        kind: "p2pType",
        buff_hi: "buffHi32",
        buff_lo: "buffLo32",
        count_hi: "countHi32",
        count_lo: "countLo32",
        chunk_size: "chunkSize",
        groups: "ngroups",
    }
}

/// Where sizes and offsets of slots are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Slots {
    /// `connFifo` of a connection.
    Entries { at: Place, fifo: Fifo },
    /// Before 2.20 `sizesFifo` and `offsFifo`, arrays of `int`.
    Arrays { sizes: Place, offsets: Place },
}

/// `ncclComm`, the host's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostComm {
    /// 2.18 and later.
    pub(crate) hash: Option<Place>,
    pub(crate) dev_comm: Place,
}

/// Work as 2.22 and later have it: batches that refer to work structs.
#[derive(Debug)]
pub(crate) struct BatchForm {
    pub(crate) args: Args,
    pub(crate) batch: Batch,
    pub(crate) coll: Coll,
    pub(crate) p2p: P2p,
    pub(crate) kind_p2p: u64,
    pub(crate) kind_coll: u64,
    pub(crate) storage_args: u64,
    /// Fused broadcasts, and the number of their kind.
    pub(crate) bcast: Option<(Bcast, u64)>,
    pub(crate) profiler: Option<Profiler>,
    /// Parts of a p2p transfer lie on channels in the order of their reversed bits.
    pub(crate) reversed_parts: bool,
}

/// Work before 2.22: a list of 512-byte structs per channel.
#[derive(Debug)]
pub(crate) struct ListForm {
    pub(crate) work: OldWork,
    pub(crate) elem: OldElem,
    /// `None`: all channels take turns at the whole (before 2.20).
    pub(crate) share: Option<OldShare>,
    pub(crate) p2p: OldP2p,
    pub(crate) kind_coll: u64,
    pub(crate) kind_p2p: u64,
    pub(crate) send: u64,
    pub(crate) recv: u64,
}

/// How a kernel is told its work.
#[derive(Debug)]
pub(crate) enum Work {
    Batches(Box<BatchForm>),
    Lists(Box<ListForm>),
}

#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) comm: Comm,
    pub(crate) channel: Channel,
    pub(crate) peer: Peer,
    pub(crate) conn: Conn,
    pub(crate) slots: Slots,
    /// `ncclDevChannel.peers` is an array of them and not of their addresses (before 2.18).
    pub(crate) peers_in_place: bool,
    /// `ncclConnInfo.stepSize`, from 2.21 on.
    pub(crate) step_size: Option<Place>,
    /// `ncclDevComm.p2pChunkSize`, from 2.19 on.
    pub(crate) p2p_chunk_size: Option<Place>,
    pub(crate) work: Work,
    /// Number of data types, of device reductions.
    pub(crate) types: usize,
    pub(crate) redops: usize,
    /// How many messages the proxies expect of PAT.
    pub(crate) pat: Option<PatRule>,
    /// `NCCL_NUM_ALGORITHMS` where a function's number follows from it (before 2.19).
    pub(crate) algorithms_before_rows: Option<usize>,
}

impl HostComm {
    /// What a bed needs whose kernels move nothing.
    pub(crate) fn read(library: &Path) -> Result<Self> {
        let request = Request { structs: vec!["ncclComm".to_owned()], ..Request::default() };
        let resolution = resolve(&Image::open(library)?, &request)?;
        let layouts = &resolution.layouts;
        Ok(Self {
            hash: place(layouts, "ncclComm", "commHash").ok(),
            dev_comm: place(layouts, "ncclComm", "devComm")?,
        })
    }
}

impl Layout {
    pub(crate) fn read(library: &Path) -> Result<Self> {
        let image = Image::open(library)?;
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let request = Request {
            functions: Vec::new(),
            variables: Vec::new(),
            structs: strings(&[
                "ncclKernelComm",
                "ncclDevComm",
                "ncclDevChannel",
                "ncclDevChannelPeer",
                "ncclConnInfo",
                "ncclConnFifo",
                "ncclDevKernelArgs",
                "ncclDevWorkBatch",
                "ncclDevWorkColl",
                "ncclDevWorkP2p",
                "ncclWork",
                "ncclWorkElem",
                "ncclWorkElemP2p",
                "ncclComm",
                "ncclDevProfiler",
                "ncclDevWorkBcast",
            ]),
            enums: strings(&[
                "ncclDataType_t",
                "ncclDevRedOp_t",
                "ncclDevWorkType",
                "ncclDevWorkStorageType",
                "ncclWorkType",
                "ncclWorkP2PType",
            ]),
        };
        let resolution = resolve(&image, &request)?;
        let layouts = &resolution.layouts;
        let version = resolution.nccl_version.as_ref().map(|version| (version.major, version.minor));
        let value = |of: &str, name: &str| -> Result<u64> {
            let found =
                layouts.enum_value(of, name).with_context(|| format!("no value {name} in enum {of}"))?;
            Ok(u64::try_from(found)?)
        };
        let work = if layouts.struct_size("ncclDevWorkBatch").is_some() {
            Work::Batches(Box::new(BatchForm {
                args: Args::find(layouts, &["ncclDevKernelArgs"])?,
                batch: Batch::find(layouts, &["ncclDevWorkBatch"])?,
                coll: Coll::find(layouts, &["ncclDevWorkColl"])?,
                p2p: P2p::find(layouts, &["ncclDevWorkP2p"])?,
                kind_p2p: value("ncclDevWorkType", "ncclDevWorkTypeP2p")?,
                kind_coll: value("ncclDevWorkType", "ncclDevWorkTypeColl")?,
                storage_args: value("ncclDevWorkStorageType", "ncclDevWorkStorageTypeArgs")?,
                bcast: Bcast::find(layouts, &["ncclDevWorkBcast"])
                    .and_then(|bcast| Ok((bcast, value("ncclDevWorkType", "ncclDevWorkTypeBcast")?)))
                    .ok(),
                profiler: Profiler::find(layouts),
                // nccl:v2.28.3-1:src/include/device.h changed ncclP2pChannelForPart; no layout shows this.
                reversed_parts: version.is_some_and(|version| version < (2, 28)),
            }))
        } else {
            Work::Lists(Box::new(ListForm {
                work: OldWork::find(layouts, &["ncclWork"])?,
                elem: OldElem::find(layouts, &["ncclWorkElem"])?,
                share: OldShare::find(layouts, &["ncclWorkElem"]).ok(),
                p2p: OldP2p::find(layouts, &["ncclWorkElemP2p"])?,
                kind_coll: value("ncclWorkType", "ncclWorkTypeColl")?,
                kind_p2p: value("ncclWorkType", "ncclWorkTypeP2p")?,
                send: value("ncclWorkP2PType", "ncclWorkP2pTypeSend")?,
                recv: value("ncclWorkP2PType", "ncclWorkP2pTypeRecv")?,
            }))
        };
        Ok(Self {
            comm: Comm::find(layouts, &["ncclKernelComm", "ncclDevComm"])?,
            channel: Channel::find(layouts, &["ncclDevChannel"])?,
            peer: Peer::find(layouts, &["ncclDevChannelPeer"])?,
            conn: Conn::find(layouts, &["ncclConnInfo"])?,
            slots: match place(layouts, "ncclConnInfo", "sizesFifo") {
                Ok(sizes) => Slots::Arrays { sizes, offsets: place(layouts, "ncclConnInfo", "offsFifo")? },
                Err(_) => Slots::Entries {
                    at: place(layouts, "ncclConnInfo", "connFifo")?,
                    fifo: Fifo::find(layouts, &["ncclConnFifo"])?,
                },
            },
            peers_in_place: layouts
                .field("ncclDevChannel", "peers")
                .is_some_and(|peers| peers.type_name.matches('*').count() == 1),
            step_size: place(layouts, "ncclConnInfo", "stepSize").ok(),
            p2p_chunk_size: ["ncclKernelComm", "ncclDevComm"]
                .iter()
                .find_map(|comm| place(layouts, comm, "p2pChunkSize").ok()),
            work,
            types: usize::try_from(value("ncclDataType_t", "ncclNumTypes")?)?,
            redops: usize::try_from(value("ncclDevRedOp_t", "ncclNumDevRedOps")?)?,
            pat: resolution.nccl_version.and_then(PatRule::of),
            algorithms_before_rows: match version {
                Some((2, 16)) => Some(4),
                Some((2, 17)) => Some(5),
                Some((2, 18)) => Some(6),
                _ => None,
            },
        })
    }
}

pub(super) fn place(layouts: &Layouts, strukt: &str, path: &str) -> Result<Place> {
    let field = layouts.field(strukt, path).with_context(|| format!("no layout of {strukt}.{path}"))?;
    let size = usize::try_from(field.size)?;
    let (shift, width) = field.bits.map_or((0, 8 * u32::try_from(size)?), |bits| (bits.shift, bits.width));
    Ok(Place { offset: usize::try_from(field.offset)?, size, shift, width })
}
