//! Traffic between two ranks, over all channels, as one of them saw it.

use flow::{
    schema::{BytesKind, MessageRow, MessageSums},
    statistics::Quantiles,
};
use nccl_library::nccl::{Direction, Transport};

use super::{
    counted::Numbered,
    data::LinkData,
    open_ops::{OpTotals, add_waits},
};

/// Most links that are kept apart. A ring has two for each rank, an all-to-all two for each pair of ranks.
const MAX_LINKS: usize = 32_768;

#[derive(Debug, Default)]
struct Link {
    transport: Option<Transport>,
    /// Channels, one bit for each.
    channels: u64,
    messages: u64,
    ended: u64,
    exact: u64,
    capacity: u64,
    bytes: u64,
    sized: u64,
    moved: u64,
    busy_ns: u64,
    times: Quantiles,
    waits_ns: [u64; 8],
}

impl Link {
    fn note(&mut self, channel: u32, transport: Transport) {
        self.channels |= 1u64.checked_shl(channel).unwrap_or(0);
        if self.transport.as_deref().is_none_or(str::is_empty) {
            self.transport = Some(transport);
        }
    }
}

type LinkKey = (usize, i32, bool, i32);

fn key(comm: usize, rank: i32, op: Direction, peer: i32) -> LinkKey {
    (comm, rank, op == Direction::Recv, peer)
}

#[derive(Debug)]
pub(super) struct Links(Numbered<LinkKey, Link>);

impl Default for Links {
    fn default() -> Self {
        Self(Numbered::new(MAX_LINKS))
    }
}

impl Links {
    pub(super) fn add(&mut self, comm: usize, message: &MessageRow) {
        let key = key(comm, message.rank, message.op, message.peer);
        let Some(link) = self.0.get(&key, Link::default) else { return };
        link.note(message.channel, message.transport);
        link.messages += 1;
        let planned = match message.bytes_kind {
            BytesKind::Exact => &mut link.exact,
            BytesKind::Capacity => &mut link.capacity,
        };
        *planned = planned.saturating_add(message.bytes);
        let measured = message.bytes_measured.get();
        if let Some(bytes) = measured {
            link.bytes = link.bytes.saturating_add(bytes);
            link.sized += 1;
        }
        add_waits(&mut link.waits_ns, message);
        if let (Some(begin), Some(end)) = (message.begin(), message.t_end_ns.get()) {
            link.ended += 1;
            link.moved = link.moved.saturating_add(measured.unwrap_or(message.bytes));
            link.times.add(end.saturating_sub(begin));
        }
    }

    /// Adds messages that were only planned.
    pub(super) fn add_sums(&mut self, comm: usize, rank: i32, sums: &MessageSums) {
        let Some(link) = self.0.get(&key(comm, rank, sums.op, sums.peer), Link::default) else { return };
        link.note(sums.channel, sums.transport);
        link.messages = link.messages.saturating_add(sums.messages);
        link.exact = link.exact.saturating_add(sums.bytes_exact);
        link.capacity = link.capacity.saturating_add(sums.bytes_capacity);
    }

    /// Adds the time of an op of which all channels have come: during it, its links had messages on their
    /// way.
    pub(super) fn add_op(&mut self, op: &OpTotals) {
        for (direction, peer, begin, end) in &op.peers {
            let key = key(op.comm, op.rank, *direction, *peer);
            if let Some(link) = self.0.get(&key, Link::default) {
                link.busy_ns = link.busy_ns.saturating_add(end.saturating_sub(*begin));
            }
        }
    }

    pub(super) fn left_out(&self) -> u64 {
        self.0.left_out
    }

    /// Returns the links of a communicator, by rank, direction and peer.
    pub(super) fn data(&self, comm: usize) -> Vec<LinkData> {
        let mut links: Vec<_> = self.0.iter().filter(|((of, ..), _)| *of == comm).collect();
        links.sort_by_key(|(key, _)| *key);
        let data = |((_, rank, is_receive, peer), link): &(LinkKey, Link)| LinkData {
            rank: *rank,
            peer: *peer,
            op: if *is_receive { "RECV" } else { "SEND" },
            transport: link.transport.as_deref().unwrap_or_default().to_owned(),
            channels: (0..64).filter(|channel| link.channels >> channel & 1 == 1).collect(),
            messages: link.messages,
            ended: link.ended,
            exact: link.exact,
            capacity: link.capacity,
            bytes: link.bytes,
            sized: link.sized,
            moved: link.moved,
            busy_ns: link.busy_ns,
            p50_ns: link.times.percentile(50),
            p99_ns: link.times.percentile(99),
            max_ns: (link.times.count() > 0).then_some(link.times.max),
            waits_ns: link.waits_ns,
        };
        links.into_iter().map(data).collect()
    }
}
