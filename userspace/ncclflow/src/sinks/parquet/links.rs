//! Traffic of each link of each rank, by seconds: the table `link_1s`.

use flow::schema::{BytesKind, LinkSecond, MessageRow, MessageSums, Op, RankKey, SecondOf};
use foldhash::HashMap;
use nccl_library::nccl::{Direction, Transport};

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

#[derive(Debug, Default)]
pub(super) struct LinkSeconds {
    seconds: HashMap<Key, LinkSecond>,
    /// Row that the last message was added to, where the next one mostly goes.
    last: Option<(Key, LinkSecond)>,
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
            add(self.row(key), message);
        }
    }

    /// Adds messages of an op that were only planned.
    pub(super) fn add_sums(&mut self, op: &Op, sums: &[MessageSums], offset_ns: u64) {
        for with_peer in sums {
            let row = self.row(Key {
                rank: op.rank,
                peer: with_peer.peer,
                channel: with_peer.channel,
                op: with_peer.op,
                transport: with_peer.transport,
                second: op.row.ts_ns.saturating_add(offset_ns) / NS_PER_SECOND,
                second_of: SecondOf::Op,
            });
            row.messages = row.messages.saturating_add(with_peer.messages);
            row.bytes_exact = row.bytes_exact.saturating_add(with_peer.bytes_exact);
            row.bytes_capacity = row.bytes_capacity.saturating_add(with_peer.bytes_capacity);
        }
    }

    fn row(&mut self, key: Key) -> &mut LinkSecond {
        if self.last.as_ref().is_none_or(|(last, _)| *last != key) {
            let row = self.seconds.remove(&key).unwrap_or_else(|| empty(&key));
            if let Some((before, row)) = self.last.replace((key, row)) {
                self.seconds.insert(before, row);
            }
        }
        &mut self.last.get_or_insert_with(|| (key, empty(&key))).1
    }

    pub(super) fn is_full(&self) -> bool {
        self.seconds.len() >= MAX_KEPT
    }

    /// Takes all rows, in one order, so that the same recording gives the same bytes each time.
    pub(super) fn take(&mut self) -> impl Iterator<Item = LinkSecond> {
        let last = self.last.take();
        let mut rows: Vec<_> = std::mem::take(&mut self.seconds).into_iter().chain(last).collect();
        rows.sort_unstable_by_key(|(key, _)| *key);
        rows.into_iter().map(|(_, row)| row)
    }
}

fn add(row: &mut LinkSecond, message: &MessageRow) {
    row.messages += 1;
    row.messages_measured += u64::from(message.t_end_ns.get().is_some());
    let bytes = match message.bytes_kind {
        BytesKind::Exact => &mut row.bytes_exact,
        BytesKind::Capacity => &mut row.bytes_capacity,
    };
    *bytes = bytes.saturating_add(message.bytes);
    if let Some(bytes) = message.bytes_measured.get() {
        row.bytes_measured = row.bytes_measured.saturating_add(bytes);
        row.sizes_measured += 1;
    }
    if let (Some(begin), Some(end)) = (message.begin(), message.t_end_ns.get()) {
        let busy = end.saturating_sub(begin);
        row.busy_sum_ns = row.busy_sum_ns.saturating_add(busy);
        row.busy_max_ns = row.busy_max_ns.max(busy);
        row.busy_messages += 1;
    }
    row.add_waits(message.waits());
}

fn empty(key: &Key) -> LinkSecond {
    let Key { rank, peer, channel, op, transport, second, second_of } = *key;
    LinkSecond {
        communicator: rank.comm_name(),
        rank: rank.rank,
        peer,
        channel,
        op,
        transport,
        second,
        second_of,
        messages: 0,
        messages_measured: 0,
        bytes_exact: 0,
        bytes_capacity: 0,
        bytes_measured: 0,
        sizes_measured: 0,
        busy_sum_ns: 0,
        busy_max_ns: 0,
        busy_messages: 0,
        wait_gpu_ready_ns: 0,
        wait_peer_buffer_ns: 0,
        wait_gpu_ready_or_peer_buffer_ns: 0,
        wait_network_ns: 0,
        wait_flush_ns: 0,
        wait_gpu_consume_ns: 0,
        wait_flush_or_gpu_consume_ns: 0,
        waited_gpu_ready: 0,
        waited_peer_buffer: 0,
        waited_gpu_ready_or_peer_buffer: 0,
        waited_network: 0,
        waited_flush: 0,
        waited_gpu_consume: 0,
        waited_flush_or_gpu_consume: 0,
    }
}
