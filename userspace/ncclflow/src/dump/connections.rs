//! Which peer a connection leads to: the connectors in `channels[].peers[]`, each with its
//! `ncclProxyConnection`.

use std::collections::{BTreeSet, HashMap};

use super::{
    comm_layout::CommLayout,
    communicator::{Communicator, places},
    proxy::NET,
    rank_report::ConnectionReport,
};
use crate::memory::{Memory, ReadError};
use nccl_library::{
    elf::RuntimeAddr,
    fields::{
        ArrayField, IntField, MissingField, channel_peer, connector, proxy_connection, recv_net_resources,
        send_net_resources,
    },
    layouts::Layouts,
    nccl::Direction,
};

/// Where connectors are in `ncclChannelPeer`, and their connection in them.
#[derive(Debug)]
pub(crate) struct ConnectionLayout {
    send: ArrayField,
    recv: ArrayField,
    connection: IntField,
    proxy_progress: Option<IntField>,
    connected: Option<IntField>,
    steps: Option<StepLayout>,
}

/// Where a network connection counts its FIFO steps: `step` in its resources (src/transport/net.cc).
#[derive(Debug)]
struct StepLayout {
    /// The connection's memory is that of the process with the communicator.
    same_process: Option<IntField>,
    transport: IntField,
    resources: IntField,
    send: IntField,
    recv: IntField,
}

impl StepLayout {
    fn new(layouts: &Layouts) -> Option<Self> {
        Some(Self {
            same_process: connector::PROXY_SAME_PROCESS.find_int(layouts),
            transport: proxy_connection::TRANSPORT.find_int(layouts)?,
            resources: proxy_connection::TRANSPORT_RESOURCES.find_int(layouts)?,
            send: send_net_resources::STEP.find_int(layouts)?,
            recv: recv_net_resources::STEP.find_int(layouts)?,
        })
    }
}

/// Peers by the address of their connection's `ncclProxyConnection`.
pub(crate) type Peers = HashMap<u64, (u32, Direction)>;

impl ConnectionLayout {
    pub(crate) fn new(layouts: &Layouts) -> Result<Self, MissingField> {
        Ok(Self {
            send: channel_peer::SEND.array(layouts)?,
            recv: channel_peer::RECV.array(layouts)?,
            connection: connector::PROXY_CONNECTION.int(layouts)?,
            proxy_progress: connector::PROXY_PROGRESS.find_int(layouts),
            connected: connector::CONNECTED.find_int(layouts),
            steps: StepLayout::new(layouts),
        })
    }

    /// All connections of one channel.
    pub(crate) fn of_channel(
        &self,
        memory: Memory<'_>,
        layout: &CommLayout,
        comm: &Communicator,
        channel: u32,
    ) -> Result<Peers, ReadError> {
        let peers = Self::peer_structs(memory, layout, comm, channel)?;
        let mut places = Vec::new();
        let mut meanings = Vec::new();
        for (rank, peer) in (0..).zip(peers).filter(|(_, peer)| *peer != 0) {
            for (direction, ArrayField { offset, count, elem_size }) in
                [(Direction::Send, self.send), (Direction::Recv, self.recv)]
            {
                for index in 0..count.min(4) {
                    let at = peer.saturating_add(offset + index * elem_size + self.connection.offset());
                    places.push((RuntimeAddr(at), 8));
                    meanings.push((rank, direction));
                }
            }
        }
        let words = memory.gather(&places)?;
        let words = words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        Ok(words.zip(meanings).filter(|(connection, _)| *connection != 0).collect())
    }

    /// Whether the ring of the first channel goes through the proxy; `None` where it is not connected yet or
    /// cannot be told.
    pub(crate) fn ring_has_proxy(
        &self,
        memory: Memory<'_>,
        layout: &CommLayout,
        comm: &Communicator,
    ) -> Option<bool> {
        let ring = comm.channels.first()?;
        let peers = Self::peer_structs(memory, layout, comm, ring.channel).ok()?;
        let ends = [(ring.ring_next, self.send.offset), (ring.ring_prev, self.recv.offset)];
        let mut any = false;
        for (rank, offset) in ends {
            let peer = *peers.get(usize::try_from(rank).ok()?)?;
            let connector = RuntimeAddr(peer.checked_add(offset).filter(|_| peer != 0)?);
            let wanted = [Some(self.proxy_progress?), Some(self.connected?)];
            let [progress, connected] = places(memory, connector, wanted).ok()?;
            if connected? == 0 {
                return None;
            }
            any |= progress? != 0;
        }
        Some(any)
    }

    /// The network connections with this rank's neighbours in rings and trees, and how many steps were begun
    /// on each. Those that cannot be read are left out.
    pub(crate) fn of_neighbours(
        &self,
        memory: Memory<'_>,
        layout: &CommLayout,
        comm: &Communicator,
    ) -> Vec<ConnectionReport> {
        let Some(steps) = &self.steps else { return Vec::new() };
        let mut found = Vec::new();
        for channel in &comm.channels {
            let Ok(peers) = Self::peer_structs(memory, layout, comm, channel.channel) else { continue };
            let down = channel.tree_down.iter().copied();
            let neighbours = [channel.ring_prev, channel.ring_next, channel.tree_up].into_iter().chain(down);
            let neighbours: BTreeSet<u32> = neighbours.filter_map(|rank| rank.try_into().ok()).collect();
            for peer in neighbours {
                let at = usize::try_from(peer).ok().and_then(|peer| peers.get(peer)).copied().unwrap_or(0);
                for (direction, ArrayField { offset, .. }) in
                    [(Direction::Send, self.send), (Direction::Recv, self.recv)]
                {
                    let connector = RuntimeAddr(at.saturating_add(offset));
                    let count = (at != 0).then(|| self.begun_steps(memory, steps, connector, direction));
                    if let Some(steps) = count.flatten() {
                        found.push(ConnectionReport { channel: channel.channel, direction, peer, steps });
                    }
                }
            }
        }
        found
    }

    fn begun_steps(
        &self,
        memory: Memory<'_>,
        layout: &StepLayout,
        connector: RuntimeAddr,
        direction: Direction,
    ) -> Option<u64> {
        let wanted = [Some(self.connection), layout.same_process, self.connected];
        let [connection, same_process, connected] = places(memory, connector, wanted).ok()?;
        if connection? == 0 || same_process == Some(0) || connected == Some(0) {
            return None;
        }
        let wanted = [Some(layout.transport), Some(layout.resources)];
        let [transport, resources] = places(memory, RuntimeAddr(connection?), wanted).ok()?;
        let step = match direction {
            Direction::Send => layout.send,
            Direction::Recv => layout.recv,
        };
        if transport != Some(NET) || resources? == 0 {
            return None;
        }
        places(memory, RuntimeAddr(resources?), [Some(step)]).ok()?[0]
    }

    /// `channel->peers[rank]` for all ranks.
    fn peer_structs(
        memory: Memory<'_>,
        layout: &CommLayout,
        comm: &Communicator,
        channel: u32,
    ) -> Result<Vec<u64>, ReadError> {
        let Some(channel) = layout.channel(comm.address, channel) else { return Ok(Vec::new()) };
        let array = memory.word(RuntimeAddr(channel.0.saturating_add(layout.peers.offset())))?;
        let words = memory.bytes(RuntimeAddr(array), 8 * u64::from(comm.n_ranks))?;
        Ok(words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }
}
