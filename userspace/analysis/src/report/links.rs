//! Traffic between two ranks, over all channels, as one of them saw it.

use flow::{
    schema::{MessageRow, MessageSums},
    statistics::{LinkSums, Quantiles, Sum, Wait},
};
use nccl_library::nccl::Direction;

use super::{
    counted::Numbered,
    data::LinkData,
    open_ops::{OpTotals, WAITS, add_wait, channel_bit},
};

/// Most links that are kept apart. A ring has two for each rank, an all-to-all two for each pair of ranks.
const MAX_LINKS: usize = 32_768;

#[derive(Debug, Default)]
struct Link {
    /// Channels, one bit for each.
    channels: u64,
    sums: LinkSums<Quantiles, Sum>,
    busy_ns: u64,
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
        link.channels |= channel_bit(message.channel);
        link.sums.add(message);
    }

    /// Adds messages that were only planned.
    pub(super) fn add_sums(&mut self, comm: usize, rank: i32, sums: &MessageSums) {
        let Some(link) = self.0.get(&key(comm, rank, sums.op, sums.peer), Link::default) else { return };
        link.channels |= channel_bit(sums.channel);
        link.sums.add_sums(sums);
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
        links.into_iter().map(data).collect()
    }
}

fn data(((_, rank, is_receive, peer), link): &(LinkKey, Link)) -> LinkData {
    let (op, sums) = (if *is_receive { Direction::Recv } else { Direction::Send }, &link.sums);
    let mut waits_ns = [0; WAITS.len()];
    for (wait, sum) in Wait::ALL.into_iter().zip(sums.waits) {
        add_wait(&mut waits_ns, op, wait, sum.ns);
    }
    LinkData {
        rank: *rank,
        peer: *peer,
        op: op.name(),
        transport: sums.transport.to_string(),
        channels: (0..64).filter(|channel| link.channels >> channel & 1 == 1).collect(),
        messages: sums.messages,
        ended: sums.times.count(),
        exact: sums.planned_exact,
        capacity: sums.planned_capacity,
        bytes: sums.bytes_measured,
        sized: sums.sized,
        moved: sums.bytes_timed,
        busy_ns: link.busy_ns,
        p50_ns: sums.times.percentile(50),
        p99_ns: sums.times.percentile(99),
        max_ns: (sums.times.count() > 0).then_some(sums.times.max),
        waits_ns,
    }
}
