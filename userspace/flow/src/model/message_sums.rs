//! Adds up the messages of ops that were only planned.
//!
//! A job repeats its ops, so sums are kept, by the layout that they follow from.

use foldhash::HashMap;

use super::{
    flow::FlowRecord,
    transfers::{Layout, LayoutKey},
};
use crate::schema::{BytesKind, MessageSums, Op};

/// Layouts whose sums are kept. A rank has two for each channel and size; a target can invent any number.
const MAX_KEPT: usize = 8192;

/// Messages up to which a layout is added up faster than its kept sum is found.
const FEW: u64 = 4;

/// Bytes of messages that follow from the plan, and capacities of messages whose size does not.
type Sums = (u64, u64);

#[derive(Debug, Default)]
pub(super) struct KnownSums(HashMap<LayoutKey, Sums>);

impl KnownSums {
    /// Returns the sums of the op's messages, for each peer that it has messages with.
    pub(super) fn of(&mut self, record: &FlowRecord, op: &Op) -> Vec<MessageSums> {
        let peers = record.peers.iter().zip(&op.row.peers);
        let sums = peers.map(|(peer, row)| {
            let layout = Layout::new(record, peer);
            let (bytes_exact, bytes_capacity) = self.of_layout(&layout);
            let (messages, channel) = (layout.len(), op.row.channel);
            let (op, peer, transport) = (row.op, row.peer, row.transport);
            MessageSums { op, peer, channel, transport, messages, bytes_exact, bytes_capacity }
        });
        sums.filter(|sums| sums.messages > 0).collect()
    }

    fn of_layout(&mut self, layout: &Layout<'_>) -> Sums {
        if layout.len() <= FEW {
            return add_up(layout);
        }
        let key = layout.key;
        if let Some(sums) = self.0.get(&key) {
            return *sums;
        }
        if self.0.len() >= MAX_KEPT {
            self.0.clear();
        }
        let sums = add_up(layout);
        self.0.insert(key, sums);
        sums
    }
}

fn add_up(layout: &Layout<'_>) -> Sums {
    let messages = (0..layout.len()).map(|index| layout.message(index));
    messages.fold((0, 0), |(exact, capacity), message| match message.bytes_kind {
        BytesKind::Exact => (exact.saturating_add(message.bytes), capacity),
        BytesKind::Capacity => (exact, capacity.saturating_add(message.bytes)),
    })
}
