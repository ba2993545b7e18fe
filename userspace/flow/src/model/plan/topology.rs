//! Topology of a communicator: the graphs of its channels, and the connectors of their peers.
//!
//! NCCL connects algorithms and peers when they are first used, and takes nothing back while the communicator
//! lives: what was read once stays true.

use foldhash::HashMap;

use crate::decode::{ChannelGraphs, Connector};
use nccl_library::nccl::Direction;

/// Connectors of one communicator. 64 channels × 4 connectors × some thousand peers; a target that has more
/// wants to fill our memory.
const MAX_CONNECTORS: usize = 1 << 20;

/// Channels of one communicator. NCCL has 64 at most (`MAXCHANNELS`, 2.25 and later).
const MAX_CHANNELS: usize = 256;

/// Channels and connectors of one communicator, as far as they were read.
#[derive(Debug, Default)]
pub(super) struct Topology {
    pub(super) channels: HashMap<u32, ChannelGraphs>,
    /// By channel, peer, direction and index.
    pub(super) connectors: HashMap<(u32, i32, Direction, i32), Connector>,
}

impl Topology {
    pub(super) fn note_channel(&mut self, channel: u32, graphs: ChannelGraphs) {
        if self.channels.len() < MAX_CHANNELS || self.channels.contains_key(&channel) {
            self.channels.insert(channel, graphs);
        }
    }

    pub(super) fn note_connectors(&mut self, channel: u32, connectors: Vec<Connector>) {
        for connector in connectors {
            // A connector has no transport before it is connected, so later records replace earlier ones.
            let key = (channel, connector.peer, connector.direction, connector.connection_index);
            if self.connectors.len() < MAX_CONNECTORS || self.connectors.contains_key(&key) {
                self.connectors.insert(key, connector);
            }
        }
    }

    /// Returns about how many bytes of memory the topology takes.
    pub(super) fn held_bytes(&self) -> usize {
        self.channels.len() * size_of::<(u32, ChannelGraphs)>()
            + self.connectors.len() * size_of::<((u32, i32, Direction, i32), Connector)>()
    }
}
