//! Peers of connections: the connectors in `channels[].peers[]`, each with its `ncclProxyConnection`.

use std::collections::{BTreeSet, HashMap};

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
        let peers = peer_structs(memory, layout, comm, channel)?;
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
        let peers = peer_structs(memory, layout, comm, ring.channel).ok()?;
        let mut any = false;
        for (rank, (_, end)) in [ring.ring_next, ring.ring_prev].into_iter().zip(self.ends) {
            let peer = *peers.get(usize::try_from(rank).ok()?)?;
            let connector = peer.checked_add(end.offset).filter(|_| peer != 0)?;
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
            let Ok(peers) = peer_structs(memory, layout, comm, channel.channel) else { continue };
            for peer in channel.neighbours().collect::<BTreeSet<u32>>() {
                let at = usize::try_from(peer).ok().and_then(|peer| peers.get(peer)).filter(|at| **at != 0);
                let Some(at) = at else { continue };
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

/// Reads `channel->peers[rank]` for all ranks; none of a channel that is not set up.
pub(super) fn peer_structs(
    memory: Memory<'_>,
    layout: &CommLayout,
    comm: &RankReport,
    channel: u32,
) -> Result<Vec<u64>, ReadError> {
    let Some(channel) = layout.channel(comm.address, channel) else { return Ok(Vec::new()) };
    let array = memory.word(RuntimeAddr(channel.saturating_add(layout.peers.offset())))?;
    if array == 0 {
        return Ok(Vec::new());
    }
    memory.words(RuntimeAddr(array), u64::from(comm.n_ranks))
}
