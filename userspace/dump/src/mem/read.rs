//! Memory of a communicator, out of its own structs: its connections' buffers and its FIFO of work.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

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
const PEERS_AT_ONCE: u16 = 1 << 10;
/// Bound of the connections of a process that are counted.
const MAX_CONNECTIONS: usize = 1 << 16;
/// Time for the connections of a process.
const PATIENCE: Duration = Duration::from_secs(10);
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
#[derive(Debug)]
pub(super) struct Seen {
    until: Instant,
    looked_at: usize,
    peers: BTreeSet<u64>,
    connectors: BTreeSet<u64>,
    shared: BTreeSet<u64>,
}

impl Seen {
    /// `patience`: time for the connections of the process.
    fn new(patience: Duration) -> Self {
        Self {
            until: Instant::now() + patience,
            looked_at: 0,
            peers: BTreeSet::new(),
            connectors: BTreeSet::new(),
            shared: BTreeSet::new(),
        }
    }

    /// Says why no more connections are counted, if a bound is reached.
    fn bound(&self) -> Option<&'static str> {
        if self.looked_at > MAX_PEERS || self.connectors.len() > MAX_CONNECTIONS {
            Some("it has more connections than are looked at: those that are left are not counted")
        } else if Instant::now() > self.until {
            Some("reading its connections took too long: those that were left are not counted")
        } else {
            None
        }
    }
}

impl Default for Seen {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

/// Values of a struct's fields; `None` if it cannot be read.
type Values<const N: usize> = Option<[Option<u64>; N]>;

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
        let channels = u32::try_from(layout.channels.count.min(MAX_CHANNELS)).unwrap_or(0);
        let mut bound = None;
        for channel in 0..channels {
            bound = bound.or_else(|| seen.bound());
            if bound.is_some() {
                break;
            }
            for first in (0..rank.n_ranks).step_by(PEERS_AT_ONCE.into()) {
                bound = seen.bound();
                if bound.is_some() {
                    break;
                }
                let ranks = first..rank.n_ranks.min(first.saturating_add(PEERS_AT_ONCE.into()));
                let peers = peer_structs(memory, layout, rank, channel, ranks)?;
                if peers.is_empty() {
                    break;
                }
                for (transport, purpose, bytes) in self.connections(memory, &peers, sizes, seen)? {
                    add(transport, purpose, bytes);
                }
            }
        }
        remarks.extend(bound.map(str::to_owned));
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

    /// Returns the ways, purposes and bytes of these peers' connections that were not counted yet; no bytes
    /// where they cannot be told.
    fn connections(
        &self,
        memory: Memory<'_>,
        peers: &[u64],
        sizes: [u64; 3],
        seen: &mut Seen,
    ) -> Result<Vec<(Transport, Purpose, Option<Bytes>)>, ReadError> {
        seen.looked_at = seen.looked_at.saturating_add(peers.len());
        let connected = self.connected(memory, peers, seen)?;
        let memories: Vec<Vec<(u64, Places<3>)>> =
            connected.iter().map(|(connector, way)| self.memories(connector.direction, *way)).collect();
        let mut read = places::read_each(memory, &memories.concat())?.into_iter();
        let counted = connected.into_iter().zip(memories).map(|((connector, way), memories)| {
            let memories: Vec<_> = read.by_ref().take(memories.len()).collect();
            let purpose = if connector.index == 0 { Purpose::Collectives } else { Purpose::SendRecv };
            let bytes = self.bytes(connector.direction, way, sizes, &memories, &mut seen.shared);
            (way.transport, purpose, bytes)
        });
        Ok(counted.collect())
    }

    /// Returns the connectors of these peers that are connected and were not counted yet, each with its way.
    fn connected(
        &self,
        memory: Memory<'_>,
        peers: &[u64],
        seen: &mut Seen,
    ) -> Result<Vec<(Connector, Way)>, ReadError> {
        let mut connectors = Vec::new();
        for peer in peers.iter().filter(|peer| **peer != 0 && seen.peers.insert(**peer)) {
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
        let mut is_new = |(connector, values): (Connector, Values<4>)| {
            let [connected, connection, own, flags] = values?;
            let is_new = connected? != 0 && seen.connectors.insert(connector.at);
            is_new.then_some((connector, connection?, own, flags.unwrap_or(0) & READS != 0))
        };
        let new: Vec<_> = connectors.into_iter().zip(values).filter_map(&mut is_new).collect();
        // The state of the others is not in this process.
        let is_here = |connection, own| connection != 0 && own != Some(0);
        let states = new.iter().map(|(_, connection, own, _)| {
            (*connection, if is_here(*connection, *own) { self.connection } else { [None; 2] })
        });
        let states = places::read_each(memory, &states.collect::<Vec<_>>())?;
        let way = |((connector, connection, own, reads), state): ((_, u64, Option<u64>, bool), Values<2>)| {
            let (transport, resources) = match state.unwrap_or_default() {
                _ if connection == 0 => (Transport::Shm, None),
                _ if own == Some(0) => (Transport::Proxy, None),
                [Some(P2P), resources] => (Transport::P2p, resources),
                [Some(SHM), resources] => (Transport::Shm, resources),
                [Some(NET), resources] => (Transport::Net, resources),
                [Some(COLLNET), resources] => (Transport::CollNet, resources),
                _ => (Transport::Unknown, None),
            };
            (connector, Way { transport, resources, reads })
        };
        Ok(new.into_iter().zip(states).map(way).collect())
    }

    /// Returns the places of a network connection's memories; none of another connection.
    fn memories(&self, direction: Direction, way: Way) -> Vec<(u64, Places<3>)> {
        let ArrayField { offset, count, elem_size } = match direction {
            Direction::Send => self.memories[0],
            Direction::Recv => self.memories[1],
        };
        let resources = way.resources.filter(|_| way.transport == Transport::Net);
        let at = |resources: u64, kind: u64| {
            resources.saturating_add(offset).saturating_add(elem_size.saturating_mul(kind))
        };
        let of = |resources| (0..count.min(5)).map(move |kind| (at(resources, kind), self.memory));
        resources.into_iter().flat_map(of).collect()
    }

    /// Returns the bytes of an end of a connection; `None` if they cannot be told.
    fn bytes(
        &self,
        direction: Direction,
        way: Way,
        sizes: [u64; 3],
        memories: &[Values<3>],
        shared: &mut BTreeSet<u64>,
    ) -> Option<Bytes> {
        match way.transport {
            Transport::P2p => Some(self.direct(direction, sizes, way.reads)),
            Transport::Shm => Some(Bytes { host: self.end(direction, sizes, false), gpu: 0 }),
            Transport::Net => way.resources.and_then(|_| network(memories, shared)),
            Transport::CollNet | Transport::Proxy | Transport::Unknown | Transport::Work => None,
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
}

/// Returns the bytes of a network connection's memories: in host memory, on the GPU, shared with others in
/// either, and what GDRCopy maps. `None` if they cannot be read.
fn network(memories: &[Values<3>], shared: &mut BTreeSet<u64>) -> Option<Bytes> {
    let mut bytes = Bytes::default();
    for (kind, memory) in memories.iter().enumerate() {
        let [gpu, cpu, size] = (*memory)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use inspect::process::Process;

    fn words<const N: usize>(indices: [u64; N]) -> Places<N> {
        indices.map(|index| IntField::new(8 * index, 8))
    }

    fn array(index: u64, count: u64, words: u64) -> ArrayField {
        ArrayField { offset: 8 * index, count, elem_size: 8 * words }
    }

    /// A peer is a connector of each direction, of four words; a network connection has five memories.
    fn layout() -> MemLayout {
        MemLayout {
            ends: [(Direction::Send, array(0, 1, 4)), (Direction::Recv, array(4, 1, 4))],
            connector: words([0, 1, 2, 3]),
            connection: words([0, 1]),
            memories: [array(0, 5, 3); 2],
            memory: words([0, 1, 2]),
            buffer_sizes: array(0, 3, 1),
            ends_bytes: [4096; 2],
            work: [None; 2],
            nvls: None,
        }
    }

    fn address(words: &[u64]) -> u64 {
        words.as_ptr() as u64
    }

    #[test]
    fn a_connection_is_read_and_counted_once_however_many_peers_have_it() {
        let process = Process::open(std::process::id()).unwrap();
        // 100 bytes of the host, 30 that others share, and 1000 of the GPU.
        let memories = [0, 1, 100, 1, 0, 1000, 0, 7, 30, 0, 0, 5, 0, 0, 0];
        let (network, direct) = ([NET, address(&memories)], [P2P, 0]);
        let peers: Vec<[u64; 8]> =
            (0..100).map(|_| [1, address(&network), 1, 0, 1, address(&direct), 1, 0]).collect();
        let others = [[1, 0, 1, 0, 1, address(&network), 0, 0], [0; 8]];
        let all: Vec<u64> = peers.iter().chain(&others).map(|peer| address(peer)).collect();
        let mut seen = Seen::default();
        let found = layout().connections(Memory::new(&process), &all, [1, 2, 3], &mut seen).unwrap();
        let of = |way| found.iter().filter(move |(transport, ..)| *transport == way);
        assert_eq!(found.len(), 202);
        assert_eq!([of(Transport::Net).count(), of(Transport::P2p).count()], [100, 100]);
        assert_eq!([of(Transport::Shm).count(), of(Transport::Proxy).count()], [1, 1]);
        let host: u64 = of(Transport::Net).filter_map(|(.., bytes)| Some(bytes.as_ref()?.host)).sum();
        assert_eq!(host, 100 * 100 + 30);
        // As many as are looked at, all of them one, take less than their time.
        for peers in vec![all[0]; MAX_PEERS - all.len()].chunks(PEERS_AT_ONCE.into()) {
            let again = layout().connections(Memory::new(&process), peers, [1, 2, 3], &mut seen).unwrap();
            assert!(again.is_empty());
        }
        assert!(seen.bound().is_none());
    }

    #[test]
    fn the_connections_of_a_process_have_a_bound_in_number_and_time() {
        let late = Seen::new(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(1));
        assert!(late.bound().unwrap().contains("took too long"));
        let many = Seen { looked_at: MAX_PEERS + 1, ..Seen::default() };
        assert!(many.bound().unwrap().contains("more connections than are looked at"));
    }
}
