//! Adds up the messages of ops that were only planned.
//!
//! A job repeats its ops, so sums are kept, by the layout that they follow from.

use foldhash::HashMap;

use super::{
    flow::{FlowRecord, PeerFlow},
    transfers::{Layout, LayoutKey},
};
use crate::schema::{BytesKind, MessageSums, Op};

/// Layouts whose sums are kept. A rank has two for each channel and size; a target can invent any number.
const MAX_KEPT: usize = 8192;

/// Messages up to which a layout is added up faster than its kept sum is found.
const FEW: u64 = 4;

/// Number of messages, bytes that follow from the plan, and capacities of messages whose size does not.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    messages: u64,
    exact: u64,
    capacity: u64,
}

impl Sums {
    fn of(layout: &Layout<'_>) -> Self {
        let mut sums = Self { messages: layout.len(), ..Self::default() };
        for index in 0..layout.len() {
            let message = layout.message(index);
            let bytes = match message.bytes_kind {
                BytesKind::Exact => &mut sums.exact,
                BytesKind::Capacity => &mut sums.capacity,
            };
            *bytes = bytes.saturating_add(message.bytes);
        }
        sums
    }
}

#[derive(Debug, Default)]
pub(super) struct KnownSums(HashMap<LayoutKey, Sums>);

impl KnownSums {
    /// Returns the sums of the op's messages, for each peer that it has messages with.
    pub(super) fn of(&mut self, record: &FlowRecord, op: &Op) -> Vec<MessageSums> {
        let peers = record.peers.iter().zip(&op.row.peers);
        let sums = peers.map(|(peer, row)| {
            let Sums { messages, exact, capacity } = self.with_peer(record, peer);
            MessageSums {
                op: row.op,
                peer: row.peer,
                channel: op.row.channel,
                transport: row.transport,
                messages,
                bytes_exact: exact,
                bytes_capacity: capacity,
            }
        });
        sums.filter(|sums| sums.messages > 0).collect()
    }

    fn with_peer(&mut self, record: &FlowRecord, peer: &PeerFlow) -> Sums {
        let layout = Layout::new(record, peer);
        if layout.len() <= FEW {
            return Sums::of(&layout);
        }
        let key = layout.key();
        if let Some(sums) = self.0.get(&key) {
            return *sums;
        }
        if self.0.len() >= MAX_KEPT {
            self.0.clear();
        }
        let sums = Sums::of(&layout);
        self.0.insert(key, sums);
        sums
    }
}
