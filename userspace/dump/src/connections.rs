//! Peers of connections: the connectors in `channels[].peers[]`, each with its `ncclProxyConnection`.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
};

use super::{
    ConnectionReport, RankReport,
    comm_layout::CommLayout,
    places::{self, Places, Wanted},
    proxy::{CONNECTION, NET, NetDevs},
};
use inspect::memory::{Memory, ReadError};
use nccl_library::{
    elf::RuntimeAddr,
    fields::{
        ArrayField, IntField, MissingField, channel_peer, connector, recv_net_resources, send_net_resources,
        unsigned,
    },
    layouts::Layouts,
    nccl::Direction,
};

/// Fields of a connector. `PROXY_SAME_PROCESS`: the connection's memory is that of the process with the
/// communicator.
const CONNECTOR: [Wanted; 4] = [
    (connector::PROXY_CONNECTION, true),
    (connector::PROXY_SAME_PROCESS, false),
    (connector::PROXY_PROGRESS, false),
    (connector::CONNECTED, false),
];

/// Offsets of connectors in `ncclChannelPeer`, and of their connections in them.
#[derive(Debug)]
pub(super) struct ConnectionLayout {
    /// Connectors of senders and of receivers.
    ends: [(Direction, ArrayField); 2],
    connector: Places<4>,
    connection: Places<3>,
    /// Counters of a network connection's FIFO steps: `step` in its resources (src/transport/net.cc), of a
    /// sender and of a receiver.
    steps: [Option<IntField>; 2],
    net_devs: NetDevs,
}

/// Peers by the address of their connection's `ncclProxyConnection`.
pub(super) type Peers = HashMap<u64, u32>;

impl ConnectionLayout {
    pub(super) fn new(layouts: &Layouts) -> Result<Self, MissingField> {
        let (send, recv) = (channel_peer::SEND.array(layouts)?, channel_peer::RECV.array(layouts)?);
        Ok(Self {
            ends: [(Direction::Send, send), (Direction::Recv, recv)],
            connector: places::find(CONNECTOR, layouts)?,
            connection: places::find(CONNECTION, layouts)?,
            steps: [send_net_resources::STEP, recv_net_resources::STEP].map(|step| step.find_int(layouts)),
            net_devs: NetDevs::new(layouts),
        })
    }

    /// Returns the peers of all connections of one channel.
    pub(super) fn of_channel(
        &self,
        memory: Memory<'_>,
        layout: &CommLayout,
        comm: &RankReport,
        channel: u32,
    ) -> Result<Peers, ReadError> {
        let peers = peer_structs(memory, layout, comm, channel, 0..comm.n_ranks)?;
        let [Some(connection), ..] = self.connector else { return Ok(Peers::new()) };
        let mut places = Vec::new();
        let mut ranks = Vec::new();
        for (rank, peer) in (0..).zip(peers).filter(|(_, peer)| *peer != 0) {
            for (_, ArrayField { offset, count, elem_size }) in self.ends {
                for index in 0..count.min(4) {
                    let at = peer.saturating_add(offset + index * elem_size + connection.offset());
                    places.push((RuntimeAddr(at), 8));
                    ranks.push(rank);
                }
            }
        }
        let words = memory.gather(&places)?;
        let words = words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        Ok(words.zip(ranks).filter(|(connection, _)| *connection != 0).collect())
    }

    /// Tells whether the ring of the first channel goes through the proxy; `None` where it is not connected
    /// yet or cannot be told.
    pub(super) fn ring_has_proxy(
        &self,
        memory: Memory<'_>,
        layout: &CommLayout,
        comm: &RankReport,
    ) -> Option<bool> {
        let ring = comm.channels.first()?;
        let mut any = false;
        for (rank, (_, end)) in [ring.ring_next, ring.ring_prev].into_iter().zip(self.ends) {
            let rank = u32::try_from(rank).ok()?;
            let (_, peer) = *some_peers(memory, layout, comm, ring.channel, [rank]).ok()?.first()?;
            let connector = peer.checked_add(end.offset)?;
            let [.., progress, connected] = places::read(memory, connector, self.connector).ok()?;
            if connected? == 0 {
                return None;
            }
            any |= progress? != 0;
        }
        Some(any)
    }

    /// Returns the network connections with this rank's neighbours in rings and trees, and the number of
    /// steps that were begun on each. Those that cannot be read are left out.
    pub(super) fn of_neighbours(
        &self,
        memory: Memory<'_>,
        layout: &CommLayout,
        comm: &RankReport,
    ) -> Vec<ConnectionReport> {
        let mut found = Vec::new();
        for channel in &comm.channels {
            let neighbours = channel.neighbours().collect::<BTreeSet<u32>>();
            let Ok(peers) = some_peers(memory, layout, comm, channel.channel, neighbours) else { continue };
            for (peer, at) in peers {
                for ((direction, end), step) in self.ends.into_iter().zip(self.steps) {
                    let connector = at.saturating_add(end.offset);
                    let Some(resources) = self.net_resources(memory, connector) else { continue };
                    if let Some(steps) = places::read_one(memory, resources, step) {
                        let net_dev = self.net_devs.read(memory, direction, resources);
                        let channel = channel.channel;
                        found.push(ConnectionReport { channel, direction, peer, steps, net_dev });
                    }
                }
            }
        }
        found
    }

    /// Returns the address of the network transport's state of a connection, if it is one of this process.
    fn net_resources(&self, memory: Memory<'_>, connector: u64) -> Option<u64> {
        let [connection, same_process, _, connected] =
            places::read(memory, connector, self.connector).ok()?;
        if connection? == 0 || same_process == Some(0) || connected == Some(0) {
            return None;
        }
        let [_, transport, resources] = places::read(memory, connection?, self.connection).ok()?;
        resources.filter(|resources| transport == Some(NET) && *resources != 0)
    }
}

/// Reads `channel->peers[rank]` for these ranks. Those that cannot be read are left out.
fn some_peers(
    memory: Memory<'_>,
    layout: &CommLayout,
    comm: &RankReport,
    channel: u32,
    ranks: impl IntoIterator<Item = u32>,
) -> Result<Vec<(u32, u64)>, ReadError> {
    let Some(array) = peer_array(memory, layout, comm, channel)? else { return Ok(Vec::new()) };
    let ranks: Vec<u32> = ranks.into_iter().filter(|rank| *rank < comm.n_ranks).collect();
    let places = ranks.iter().map(|rank| (RuntimeAddr(array.saturating_add(8 * u64::from(*rank))), 8));
    let peers = memory.copies(&places.collect::<Vec<_>>())?;
    let peers = ranks.into_iter().zip(peers).filter_map(|(rank, peer)| Some((rank, unsigned(&peer?)?)));
    Ok(peers.filter(|(_, peer)| *peer != 0).collect())
}

/// Reads `channel->peers[rank]` for these ranks, which the communicator has; none of a channel that is not set up.
pub(super) fn peer_structs(
    memory: Memory<'_>,
    layout: &CommLayout,
    comm: &RankReport,
    channel: u32,
    ranks: Range<u32>,
) -> Result<Vec<u64>, ReadError> {
    let array = peer_array(memory, layout, comm, channel)?;
    let Some(first) = array.and_then(|array| array.checked_add(8 * u64::from(ranks.start))) else {
        return Ok(Vec::new());
    };
    memory.words(RuntimeAddr(first), u64::from(ranks.end.saturating_sub(ranks.start)))
}

/// Reads `channel->peers`; `None` of a channel that is not set up.
fn peer_array(
    memory: Memory<'_>,
    layout: &CommLayout,
    comm: &RankReport,
    channel: u32,
) -> Result<Option<u64>, ReadError> {
    let Some(channel) = layout.channel(comm.address, channel) else { return Ok(None) };
    let array = memory.word(RuntimeAddr(channel.saturating_add(layout.peers.offset())))?;
    Ok((array != 0).then_some(array))
}

#[cfg(test)]
mod tests {
    use inspect::process::Process;

    use super::*;
    use crate::{ChannelReport, communicator};

    fn word(index: u64) -> IntField {
        IntField::new(8 * index, 8).unwrap()
    }

    const FIRST: u32 = 900_000;

    /// The array of peers has two entries that are there, of a communicator of a million ranks.
    #[test]
    fn only_the_neighbours_among_the_peers_are_read() {
        let layout = ConnectionLayout {
            ends: [(Direction::Send, 0), (Direction::Recv, 32)]
                .map(|(direction, offset)| (direction, ArrayField { offset, count: 1, elem_size: 32 })),
            connector: [0, 1, 2, 3].map(|index| Some(word(index))),
            connection: [0, 1, 2].map(|index| Some(word(index))),
            steps: [Some(word(0)); 2],
            net_devs: NetDevs::default(),
        };
        let address = |words: &[u64]| words.as_ptr() as u64;
        let resources = [7_u64];
        let connection = [1, NET, address(&resources)];
        // A sender's and a receiver's connector.
        let peer = [[address(&connection), 1, 1, 1]; 2].concat();
        let peers = [address(&peer); 2];
        let mut comm = vec![0_u64; 64];
        comm[20] = address(&peers) - 8 * u64::from(FIRST);
        let neighbour = |rank: u32| i32::try_from(FIRST + rank).unwrap();
        let report = RankReport {
            address: address(&comm),
            n_ranks: 1 << 30,
            channels: vec![ChannelReport {
                channel: 0,
                ring_prev: neighbour(0),
                ring_next: neighbour(1),
                tree_up: -1,
                tree_down: Vec::new(),
            }],
            ..RankReport::default()
        };
        let process = Process::open(std::process::id()).unwrap();
        let memory = Memory::new(&process);
        let comm_layout = communicator::tests::layout();
        let found = layout.of_neighbours(memory, &comm_layout, &report);
        let found: Vec<_> = found.iter().map(|one| (one.peer, one.direction, one.steps)).collect();
        let both = |rank| [(rank, Direction::Send, 7), (rank, Direction::Recv, 7)];
        assert_eq!(found, [both(FIRST), both(FIRST + 1)].concat());
        assert_eq!(layout.ring_has_proxy(memory, &comm_layout, &report), Some(true));
    }
}
