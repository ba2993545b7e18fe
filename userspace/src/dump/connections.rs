//! Which peer a connection leads to: the connectors in `channels[].peers[]`, each with its `ncclProxyConnection`.

use std::collections::HashMap;

use super::{
    comm_layout::CommLayout,
    communicator::{Communicator, places},
    layout::{Fields, Missing, Place},
    report::OpDirection,
};
use crate::{
    elf::RuntimeAddr,
    memory::{Memory, ReadError},
    symbols::Layouts,
};

/// Where connectors are in `ncclChannelPeer`, and their connection in them.
#[derive(Debug)]
pub(crate) struct ConnectionLayout {
    /// Offset, count (`NCCL_MAX_CONNS`) and size of `send` and of `recv`.
    send: (u64, u64, u64),
    recv: (u64, u64, u64),
    connection: Place,
    /// From 2.19 on.
    proxy_progress: Option<Place>,
    connected: Option<Place>,
}

/// Peers by the address of their connection's `ncclProxyConnection`.
pub(crate) type Peers = HashMap<u64, (u32, OpDirection)>;

impl ConnectionLayout {
    pub(crate) fn new(layouts: &Layouts) -> Result<Self, Missing> {
        let peer = Fields::of(layouts, "ncclChannelPeer");
        let connector = Fields::of(layouts, "ncclConnector");
        Ok(Self {
            send: peer.array("send")?,
            recv: peer.array("recv")?,
            connection: connector.place("proxyConn.connection")?,
            proxy_progress: connector.maybe("proxyConn.proxyProgress"),
            connected: connector.maybe("connected"),
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
            for (direction, (offset, count, size)) in
                [(OpDirection::Send, self.send), (OpDirection::Recv, self.recv)]
            {
                for index in 0..count.min(4) {
                    let at = peer.saturating_add(offset + index * size + self.connection.offset);
                    places.push((RuntimeAddr(at), 8));
                    meanings.push((rank, direction));
                }
            }
        }
        let words = memory.gather(&places)?;
        let words = words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        Ok(words.zip(meanings).filter(|(connection, _)| *connection != 0).collect())
    }

    /// Whether the ring of the first channel goes through the proxy; `None` where it is not connected yet or cannot be told.
    pub(crate) fn ring_has_proxy(
        &self,
        memory: Memory<'_>,
        layout: &CommLayout,
        comm: &Communicator,
    ) -> Option<bool> {
        let ring = comm.channels.first()?;
        let peers = Self::peer_structs(memory, layout, comm, ring.channel).ok()?;
        let ends = [(ring.ring_next, self.send.0), (ring.ring_prev, self.recv.0)];
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

    /// `channel->peers[rank]` for all ranks.
    fn peer_structs(
        memory: Memory<'_>,
        layout: &CommLayout,
        comm: &Communicator,
        channel: u32,
    ) -> Result<Vec<u64>, ReadError> {
        let Some(channel) = layout.channel(comm.address, channel) else { return Ok(Vec::new()) };
        let array = memory.word(RuntimeAddr(channel.0.saturating_add(layout.peers.offset)))?;
        let words = memory.bytes(RuntimeAddr(array), 8 * u64::from(comm.n_ranks))?;
        Ok(words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }
}
