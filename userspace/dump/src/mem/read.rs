//! Memory of a communicator, out of its own structs: its connections' buffers and its FIFO of work.

use std::collections::{BTreeMap, BTreeSet};

use inspect::memory::{Memory, ReadError};
use nccl_library::{
    elf::RuntimeAddr,
    fields::{
        ArrayField, IntField, MissingField, channel_peer, comm, connect_map_mem, connector, proxy_connection,
        recv_mem, recv_net_resources, send_mem, send_net_resources, unsigned,
    },
    layouts::Layouts,
    nccl::Direction,
};

use super::{Part, Purpose, Transport};
use crate::{
    RankReport,
    comm_layout::CommLayout,
    connections::peer_structs,
    places::{self, Places, Wanted},
    proxy::NET,
};

/// `MAXCHANNELS`, src/include/device.h.
const MAX_CHANNELS: u64 = 64;
/// Bound of the peers of a process's channels that are looked at: 64 channels of 16,384 ranks.
const MAX_PEERS: usize = 1 << 20;
/// Number of peers that are read at once.
const PEERS_AT_ONCE: usize = 1 << 10;
/// Bound of the connections of a process that are counted.
const MAX_CONNECTIONS: usize = 1 << 16;
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
    looked_at: usize,
    connectors: BTreeSet<u64>,
    shared: BTreeSet<u64>,
}

/// An end of a connection to a peer.
#[derive(Clone, Copy, Debug)]
struct Connector {
    direction: Direction,
    at: u64,
    /// 0: of graphs of collectives.
    index: u64,
}

/// Way of a connection's data.
#[derive(Clone, Copy, Debug)]
struct Way {
    transport: Transport,
    /// Address of the transport's state.
    resources: Option<u64>,
    /// The receiver's GPU reads the sender's memory.
    reads: bool,
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
            part.connections += u64::from(transport != Transport::Work);
            match bytes {
                Some(Bytes { gpu, host }) => {
                    part.gpu_bytes = part.gpu_bytes.saturating_add(gpu);
                    part.host_bytes = part.host_bytes.saturating_add(host);
                }
                None => part.untold += 1,
            }
        };
        let mut remarks = Vec::new();
        'channels: for channel in 0..u32::try_from(layout.channels.count.min(MAX_CHANNELS)).unwrap_or(0) {
            for peers in peer_structs(memory, layout, rank, channel)?.chunks(PEERS_AT_ONCE) {
                seen.looked_at = seen.looked_at.saturating_add(peers.len());
                if seen.looked_at > MAX_PEERS || seen.connectors.len() > MAX_CONNECTIONS {
                    remarks.push("it has more connections than are looked at".to_owned());
                    break 'channels;
                }
                for (connector, of) in self.connected(memory, peers)? {
                    if !seen.connectors.insert(connector.at) {
                        continue;
                    }
                    let purpose = if connector.index == 0 { Purpose::Collectives } else { Purpose::SendRecv };
                    let bytes = self.bytes(memory, &connector, of, sizes, &mut seen.shared);
                    add(of.transport, purpose, bytes);
                }
            }
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
        let ArrayField { offset, count, elem_size } = self.buffer_sizes;
        let mut sizes = [0; 3];
        for (size, number) in sizes.iter_mut().zip(0..count) {
            let at = comm.saturating_add(offset).saturating_add(elem_size.saturating_mul(number));
            let bytes = memory.bytes(RuntimeAddr(at), elem_size.min(8))?;
            *size = unsigned(&bytes).unwrap_or(0);
        }
        Ok(sizes)
    }

    /// Returns the connectors of these peers that are connected, each with its way.
    fn connected(&self, memory: Memory<'_>, peers: &[u64]) -> Result<Vec<(Connector, Way)>, ReadError> {
        let mut connectors = Vec::new();
        for peer in peers.iter().filter(|peer| **peer != 0) {
            for (direction, ArrayField { offset, count, elem_size }) in self.ends {
                let at =
                    |index: u64| peer.saturating_add(offset).saturating_add(elem_size.saturating_mul(index));
                connectors.extend((0..count.min(4)).map(|index| Connector {
                    direction,
                    at: at(index),
                    index,
                }));
            }
        }
        let structs: Vec<(u64, Places<4>)> = connectors.iter().map(|one| (one.at, self.connector)).collect();
        let values = places::read_each(memory, &structs)?;
        let connected = connectors.into_iter().zip(values).filter_map(|(connector, values)| {
            let [connected, connection, own, flags] = values?;
            connected.filter(|connected| *connected != 0)?;
            let (transport, resources) = self.transport(memory, connection?, own);
            let reads = flags.unwrap_or(0) & READS != 0;
            Some((connector, Way { transport, resources, reads }))
        });
        Ok(connected.collect())
    }

    /// Returns the bytes of an end of a connection; `None` if they cannot be told.
    fn bytes(
        &self,
        memory: Memory<'_>,
        connector: &Connector,
        way: Way,
        sizes: [u64; 3],
        shared: &mut BTreeSet<u64>,
    ) -> Option<Bytes> {
        let direction = connector.direction;
        match way.transport {
            Transport::P2p => Some(self.direct(direction, sizes, way.reads)),
            Transport::Shm => Some(Bytes { host: self.end(direction, sizes, false), gpu: 0 }),
            Transport::Net => self.network(memory, direction, way.resources?, shared),
            Transport::CollNet | Transport::Proxy | Transport::Unknown | Transport::Work => None,
        }
    }

    /// Returns the transport of a connection, and the address of its state if that is in this process.
    fn transport(&self, memory: Memory<'_>, connection: u64, own: Option<u64>) -> (Transport, Option<u64>) {
        if connection == 0 {
            return (Transport::Shm, None);
        }
        if own == Some(0) {
            return (Transport::Proxy, None);
        }
        let [transport, resources] = places::read(memory, connection, self.connection).unwrap_or_default();
        match transport {
            Some(P2P) => (Transport::P2p, resources),
            Some(SHM) => (Transport::Shm, resources),
            Some(NET) => (Transport::Net, resources),
            Some(COLLNET) => (Transport::CollNet, resources),
            _ => (Transport::Unknown, None),
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
            let at = resources.checked_add(offset)?.checked_add(elem_size.checked_mul(kind)?)?;
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
