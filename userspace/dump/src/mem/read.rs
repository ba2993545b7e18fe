//! Memory of a communicator, out of its own structs: its connections' buffers and its FIFO of work.

use std::collections::{BTreeMap, BTreeSet};

use inspect::memory::{Memory, ReadError};
use nccl_library::{
    elf::RuntimeAddr,
    fields::{
        ArrayField, IntField, MissingField, channel_peer, comm, connect_map_mem, connector, proxy_connection,
        recv_mem, recv_net_resources, send_mem, send_net_resources,
    },
    layouts::Layouts,
    nccl::Direction,
};

use super::{Part, Purpose, Transport};
use crate::{
    RankReport,
    comm_layout::CommLayout,
    places::{self, Places, Wanted},
    proxy::NET,
};

/// Bound of the connectors of a process that are looked at.
const MAX_CONNECTORS: usize = 1 << 21;
/// `CUDA_IPC_MIN`, src/include/p2p.h: memory that other processes map is a multiple of it.
const SHAREABLE: u64 = 2 << 20;
/// `NCCL_P2P_READ`, src/include/device.h.
const READS: u64 = 2;
/// `TRANSPORT_P2P` and others, src/include/transport.h.
const P2P: u64 = 0;
const SHM: u64 = 1;
const COLLNET: u64 = 3;

const CONNECTOR: [Wanted; 4] = [
    (connector::CONNECTED, true),
    (connector::PROXY_CONNECTION, true),
    (connector::PROXY_SAME_PROCESS, false),
    (connector::FLAGS, false),
];
const CONNECTION: [Wanted; 2] =
    [(proxy_connection::TRANSPORT, true), (proxy_connection::TRANSPORT_RESOURCES, true)];
const MEMORY: [Wanted; 3] =
    [(connect_map_mem::GPU, true), (connect_map_mem::CPU, true), (connect_map_mem::SIZE, true)];

/// Places of what a communicator says of its memory.
#[derive(Debug)]
pub(crate) struct MemLayout {
    ends: [(Direction, ArrayField); 2],
    connector: Places<4>,
    connection: Places<2>,
    /// Memories of a network connection, of a sender and of a receiver.
    memories: [ArrayField; 2],
    memory: Places<3>,
    buffer_sizes: ArrayField,
    /// Sizes of `ncclSendMem` and `ncclRecvMem`.
    ends_bytes: [u64; 2],
    work: Places<2>,
    nvls: Option<IntField>,
}

/// What was counted of a process already: communicators can share connections, and connections buffers.
#[derive(Debug, Default)]
pub(super) struct Seen {
    connectors: BTreeSet<u64>,
    shared: BTreeSet<u64>,
}

/// Bytes of one connection.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    gpu: u64,
    host: u64,
}

impl MemLayout {
    pub(crate) fn new(layouts: &Layouts) -> Result<Self, MissingField> {
        let memories =
            [send_net_resources::MEMORIES.array(layouts)?, recv_net_resources::MEMORIES.array(layouts)?];
        Ok(Self {
            ends: [
                (Direction::Send, channel_peer::SEND.array(layouts)?),
                (Direction::Recv, channel_peer::RECV.array(layouts)?),
            ],
            connector: places::find(CONNECTOR, layouts)?,
            connection: places::find(CONNECTION, layouts)?,
            memories,
            memory: places::find(MEMORY, layouts)?,
            buffer_sizes: comm::BUFFER_SIZES.array(layouts)?,
            ends_bytes: [send_mem::STRUCT.size(layouts)?, recv_mem::STRUCT.size(layouts)?],
            work: [comm::WORK_FIFO_BYTES.find_int(layouts), comm::WORK_FIFO_GDR.find_int(layouts)],
            nvls: comm::NVLS_RESOURCES.find_int(layouts),
        })
    }

    /// Reads the parts of a communicator's memory, and sentences on what cannot be told.
    pub(super) fn read(
        &self,
        memory: Memory<'_>,
        layout: &CommLayout,
        rank: &RankReport,
        seen: &mut Seen,
    ) -> Result<(Vec<Part>, Vec<String>), ReadError> {
        let sizes = self.buffer_sizes(memory, rank.address)?;
        let mut parts: BTreeMap<(Transport, Purpose), Part> = BTreeMap::new();
        let mut add = |transport, purpose, bytes: Option<Bytes>| {
            let part = parts.entry((transport, purpose)).or_insert_with(|| Part::new(transport, purpose));
            part.connections += 1;
            match bytes {
                Some(Bytes { gpu, host }) => {
                    part.gpu_bytes = part.gpu_bytes.saturating_add(gpu);
                    part.host_bytes = part.host_bytes.saturating_add(host);
                }
                None => part.untold += 1,
            }
        };
        let mut remarks = Vec::new();
        let mut connectors = Vec::new();
        for channel in 0..u32::try_from(layout.channels.count).unwrap_or(0) {
            let of_channel = self.connectors(memory, layout, rank, channel)?;
            connectors.extend(of_channel.into_iter().filter(|(_, at, _)| seen.connectors.insert(*at)));
            if seen.connectors.len() > MAX_CONNECTORS {
                remarks.push("it has more connections than are looked at".to_owned());
                break;
            }
        }
        let structs: Vec<(u64, Places<4>)> =
            connectors.iter().map(|(_, at, _)| (*at, self.connector)).collect();
        for ((direction, _, index), values) in connectors.iter().zip(places::read_each(memory, &structs)?) {
            let Some([Some(connected), Some(connection), own, flags]) = values else { continue };
            if connected == 0 {
                continue;
            }
            let purpose = if *index == 0 { Purpose::Collectives } else { Purpose::SendRecv };
            let (transport, resources) = self.transport(memory, connection, own);
            let bytes = match transport {
                Transport::P2p => Some(self.direct(*direction, sizes, flags.unwrap_or(0) & READS != 0)),
                Transport::Shm => Some(Bytes { host: self.end(*direction, sizes, false), gpu: 0 }),
                Transport::Net => {
                    resources.and_then(|at| self.network(memory, *direction, at, &mut seen.shared))
                }
                Transport::CollNet | Transport::Proxy | Transport::Work => None,
            };
            add(transport, purpose, bytes);
        }
        let [bytes, gdr] = places::read(memory, rank.address, self.work)?;
        if let Some(bytes) = bytes.filter(|bytes| *bytes > 0) {
            let is_on_gpu = gdr.is_some_and(|handle| handle != 0);
            let bytes = if is_on_gpu { Bytes { gpu: bytes, host: 0 } } else { Bytes { gpu: 0, host: bytes } };
            add(Transport::Work, Purpose::Collectives, Some(bytes));
        }
        if places::read_one(memory, rank.address, self.nvls).is_some_and(|at| at != 0) {
            remarks.push("it uses NVLink SHARP, whose buffers cannot be told".to_owned());
        }
        Ok((parts.into_values().collect(), remarks))
    }

    fn buffer_sizes(&self, memory: Memory<'_>, comm: u64) -> Result<[u64; 3], ReadError> {
        let ArrayField { offset, elem_size, .. } = self.buffer_sizes;
        let mut sizes = [0; 3];
        for (size, number) in sizes.iter_mut().zip(0..) {
            let at = RuntimeAddr(comm.saturating_add(offset + number * elem_size));
            let bytes = memory.bytes(at, elem_size.min(8))?;
            *size = nccl_library::fields::unsigned(&bytes).unwrap_or(0);
        }
        Ok(sizes)
    }

    /// Returns direction, address and index of the connectors of a channel.
    fn connectors(
        &self,
        memory: Memory<'_>,
        layout: &CommLayout,
        rank: &RankReport,
        channel: u32,
    ) -> Result<Vec<(Direction, u64, u64)>, ReadError> {
        let Some(channel) = layout.channel(rank.address, channel) else { return Ok(Vec::new()) };
        let array = memory.word(RuntimeAddr(channel.saturating_add(layout.peers.offset())))?;
        if array == 0 {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for peer in memory.words(RuntimeAddr(array), u64::from(rank.n_ranks))? {
            if peer == 0 {
                continue;
            }
            for (direction, ArrayField { offset, count, elem_size }) in self.ends {
                let at = |index| peer.saturating_add(offset + index * elem_size);
                found.extend((0..count.min(4)).map(|index| (direction, at(index), index)));
            }
        }
        Ok(found)
    }

    /// Returns the transport of a connection, and the address of its state if that is in this process.
    fn transport(&self, memory: Memory<'_>, connection: u64, own: Option<u64>) -> (Transport, Option<u64>) {
        if connection == 0 {
            return (Transport::Shm, None);
        }
        if own == Some(0) {
            return (Transport::Proxy, None);
        }
        let values = places::read(memory, connection, self.connection);
        let Ok([transport, resources]) = values else { return (Transport::Proxy, None) };
        match transport {
            Some(P2P) => (Transport::P2p, resources),
            Some(SHM) => (Transport::Shm, resources),
            Some(NET) => (Transport::Net, resources),
            Some(COLLNET) => (Transport::CollNet, resources),
            _ => (Transport::Proxy, None),
        }
    }

    /// Returns the bytes that one end of a connection over peer access or shared memory has allocated
    /// (src/transport/p2p.cc, shm.cc): the receiver has the buffers, unless its GPU reads the sender's.
    fn end(&self, direction: Direction, [ll, ll128, simple]: [u64; 3], reads: bool) -> u64 {
        let [send, recv] = self.ends_bytes;
        match (direction, reads) {
            (Direction::Send, false) => send,
            (Direction::Send, true) => send.saturating_add(simple),
            (Direction::Recv, false) => recv.saturating_add(ll).saturating_add(ll128).saturating_add(simple),
            (Direction::Recv, true) => recv.saturating_add(ll).saturating_add(ll128),
        }
    }

    fn direct(&self, direction: Direction, sizes: [u64; 3], reads: bool) -> Bytes {
        let bytes = self.end(direction, sizes, reads).checked_next_multiple_of(SHAREABLE);
        Bytes { gpu: bytes.unwrap_or(0), host: 0 }
    }

    /// Returns the bytes of a network connection's memories: in host memory, on the GPU, shared with others in either,
    /// and what GDRCopy maps. `None` if they cannot be read.
    fn network(
        &self,
        memory: Memory<'_>,
        direction: Direction,
        resources: u64,
        shared: &mut BTreeSet<u64>,
    ) -> Option<Bytes> {
        let ArrayField { offset, count, elem_size } = match direction {
            Direction::Send => self.memories[0],
            Direction::Recv => self.memories[1],
        };
        let mut bytes = Bytes::default();
        for kind in 0..count.min(5) {
            let at = resources.checked_add(offset + kind * elem_size)?;
            let [gpu, cpu, size] = places::read(memory, at, self.memory).ok()?;
            let (gpu, cpu, size) = (gpu?, cpu?, size?);
            let is_there = size > 0 && (gpu != 0 || cpu != 0);
            // Connections that share a buffer have the same address of it.
            let is_shared = kind == 2 || kind == 3;
            if !is_there || is_shared && !shared.insert(if cpu == 0 { gpu } else { cpu }) {
                continue;
            }
            let to = if kind == 0 || kind == 2 { &mut bytes.host } else { &mut bytes.gpu };
            *to = to.saturating_add(size);
        }
        Some(bytes)
    }
}
