//! Traffic of each link of each rank, by seconds: the table `link_1s`.

use flow::{
    schema::{LinkSecond, MessageRow, MessageSums, Op, RankKey, SecondOf, Wait},
    statistics::{Durations, LinkSums, Sum},
};
use foldhash::HashMap;
use nccl_library::nccl::{Direction, Transport};

use super::partition::Common;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Rows that are kept to be added to. At the limit all are written, and later data for them makes further
/// rows.
const MAX_KEPT: usize = 50_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    second: u64,
    rank: RankKey,
    peer: i32,
    channel: u32,
    op: Direction,
    transport: Transport,
    second_of: SecondOf,
}

/// Times of messages, together, and the longest.
#[derive(Debug, Default)]
struct Busy {
    sum: Sum,
    longest_ns: u64,
}

impl Durations for Busy {
    fn note(&mut self, ns: u64) {
        self.sum.note(ns);
        self.longest_ns = self.longest_ns.max(ns);
    }
}

type Sums = LinkSums<Busy, Sum>;

#[derive(Debug, Default)]
pub(super) struct LinkSeconds {
    seconds: HashMap<Key, Sums>,
    /// Sums that the last message was added to, where the next one mostly goes.
    last: Option<(Key, Sums)>,
}

impl LinkSeconds {
    /// Adds messages of an op. `offset_ns`: from its clock to Unix time.
    pub(super) fn add(&mut self, op: &Op, messages: &[MessageRow], offset_ns: u64) {
        for message in messages {
            let (at_ns, second_of) = match message.t_end_ns.get() {
                Some(end) => (end, SecondOf::End),
                None => (op.row.ts_ns, SecondOf::Op),
            };
            let key = Key {
                rank: op.rank,
                peer: message.peer,
                channel: message.channel,
                op: message.op,
                transport: message.transport,
                second: at_ns.saturating_add(offset_ns) / NS_PER_SECOND,
                second_of,
            };
            self.sums(key).add(message);
        }
    }

    /// Adds messages of an op that were only planned.
    pub(super) fn add_sums(&mut self, op: &Op, sums: &[MessageSums], offset_ns: u64) {
        for with_peer in sums {
            let key = Key {
                rank: op.rank,
                peer: with_peer.peer,
                channel: with_peer.channel,
                op: with_peer.op,
                transport: with_peer.transport,
                second: op.row.ts_ns.saturating_add(offset_ns) / NS_PER_SECOND,
                second_of: SecondOf::Op,
            };
            self.sums(key).add_sums(with_peer);
        }
    }

    fn sums(&mut self, key: Key) -> &mut Sums {
        if self.last.as_ref().is_none_or(|(last, _)| *last != key) {
            let sums = self.seconds.remove(&key).unwrap_or_default();
            if let Some((before, sums)) = self.last.replace((key, sums)) {
                self.seconds.insert(before, sums);
            }
        }
        &mut self.last.get_or_insert_with(|| (key, Sums::default())).1
    }

    pub(super) fn is_full(&self) -> bool {
        self.seconds.len() >= MAX_KEPT
    }

    /// Takes all rows, in one order, so that the same recording gives the same bytes each time.
    pub(super) fn take(&mut self, common: &Common) -> impl Iterator<Item = LinkSecond> {
        let last = self.last.take();
        let mut rows: Vec<_> = std::mem::take(&mut self.seconds).into_iter().chain(last).collect();
        rows.sort_unstable_by_key(|(key, _)| *key);
        rows.into_iter().map(|(key, sums)| row(&key, &sums, common))
    }
}

fn row(key: &Key, sums: &Sums, common: &Common) -> LinkSecond {
    let Key { rank, peer, channel, op, transport, second, second_of } = *key;
    let wait = |wait: Wait| sums.waits[wait as usize];
    LinkSecond {
        communicator: rank.comm_name(),
        rank: rank.rank,
        peer,
        channel,
        op,
        transport,
        nic: common.nic(rank, op, peer, channel),
        second,
        second_of,
        messages: sums.messages,
        messages_measured: sums.ended,
        bytes_exact: sums.planned_exact,
        bytes_capacity: sums.planned_capacity,
        bytes_measured: sums.bytes_measured,
        sizes_measured: sums.sized,
        busy_sum_ns: sums.times.sum.ns,
        busy_max_ns: sums.times.longest_ns,
        busy_messages: sums.times.sum.count,
        wait_gpu_ready_ns: wait(Wait::GpuReady).ns,
        wait_peer_buffer_ns: wait(Wait::PeerBuffer).ns,
        wait_gpu_ready_or_peer_buffer_ns: wait(Wait::GpuReadyOrPeerBuffer).ns,
        wait_network_ns: wait(Wait::Network).ns,
        wait_flush_ns: wait(Wait::Flush).ns,
        wait_gpu_consume_ns: wait(Wait::GpuConsume).ns,
        wait_flush_or_gpu_consume_ns: wait(Wait::FlushOrGpuConsume).ns,
        waited_gpu_ready: wait(Wait::GpuReady).count,
        waited_peer_buffer: wait(Wait::PeerBuffer).count,
        waited_gpu_ready_or_peer_buffer: wait(Wait::GpuReadyOrPeerBuffer).count,
        waited_network: wait(Wait::Network).count,
        waited_flush: wait(Wait::Flush).count,
        waited_gpu_consume: wait(Wait::GpuConsume).count,
        waited_flush_or_gpu_consume: wait(Wait::FlushOrGpuConsume).count,
    }
}
