//! The one sum over messages of a link: what was planned, what was measured, and what was waited for. And the
//! links of a rank, with the times of its ops.

use std::collections::BTreeMap;

use super::durations::{Durations, Quantiles};
use crate::schema::{
    BytesKind, LinkKey, LinkRow, MessageRow, MessageSums, OpTimes, OpTimesRow, Wait, WaitRow,
};
use nccl_library::nccl::{Direction, Transport};

/// Sums over messages, from one rank's side. `T` takes the times of messages, `W` their waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSums<T, W = T> {
    /// Transport of the first message that names one.
    pub transport: Transport,
    /// Messages, measured or only planned.
    pub messages: u64,
    /// Planned or derived: bytes of messages whose size follows from the plan.
    pub planned_exact: u64,
    /// Planned or derived: capacities of the other messages, an upper bound.
    pub planned_capacity: u64,
    /// Measured: messages that came to their end.
    pub ended: u64,
    /// Measured: bytes of the messages whose size was seen.
    pub bytes_measured: u64,
    /// Messages whose size was seen.
    pub sized: u64,
    /// Bytes of messages: the measured size where there is one, or else the planned size.
    pub bytes: u64,
    /// The part of `bytes` of the messages in `times`.
    pub bytes_timed: u64,
    /// Times from when a message could begin to its end. Measured, with `--step-detail transitions`; else the
    /// begin is derived, as the moment from which the message's slot was free.
    pub times: T,
    /// Waits, derived from what was measured; in the order of [`Wait::ALL`].
    pub waits: [W; Wait::ALL.len()],
}

impl<T: Durations, W: Durations> LinkSums<T, W> {
    /// Adds a message that an op sends to, or receives from, a peer.
    pub fn add(&mut self, message: &MessageRow) {
        self.add_size(message);
        self.add_times(message);
    }

    /// Adds the size of a message.
    pub(super) fn add_size(&mut self, message: &MessageRow) {
        let planned = match message.bytes_kind {
            BytesKind::Exact => &mut self.planned_exact,
            BytesKind::Capacity => &mut self.planned_capacity,
        };
        *planned = planned.saturating_add(message.bytes);
        let measured = message.bytes_measured.get();
        self.note_transport(message.transport);
        self.messages += 1;
        self.sized += u64::from(measured.is_some());
        self.bytes_measured = self.bytes_measured.saturating_add(measured.unwrap_or(0));
        self.bytes = self.bytes.saturating_add(measured.unwrap_or(message.bytes));
    }

    /// Adds the moments of a message.
    pub(super) fn add_times(&mut self, message: &MessageRow) {
        for (wait, ns) in message.known_waits() {
            self.waits[wait as usize].note(ns);
        }
        let Some(end) = message.t_end_ns.get() else { return };
        self.ended += 1;
        if let Some(begin) = message.begin() {
            let bytes = message.bytes_measured.get().unwrap_or(message.bytes);
            self.bytes_timed = self.bytes_timed.saturating_add(bytes);
            self.times.note(end.saturating_sub(begin));
        }
    }

    /// Adds messages that were only planned.
    pub fn add_sums(&mut self, sums: &MessageSums) {
        self.note_transport(sums.transport);
        self.messages = self.messages.saturating_add(sums.messages);
        self.planned_exact = self.planned_exact.saturating_add(sums.bytes_exact);
        self.planned_capacity = self.planned_capacity.saturating_add(sums.bytes_capacity);
        self.bytes = self.bytes.saturating_add(sums.bytes_exact).saturating_add(sums.bytes_capacity);
    }

    fn note_transport(&mut self, transport: Transport) {
        if self.transport.is_empty() {
            self.transport = transport;
        }
    }
}

#[derive(Debug, Default)]
struct Link {
    sums: LinkSums<Quantiles>,
    busy_ns: u64,
    /// `seq`, begin and end of the op that is being read.
    span: Option<(u64, u64, u64)>,
}

impl Link {
    fn end_op(&mut self) {
        if let Some((_, begin, end)) = self.span.take() {
            self.busy_ns = self.busy_ns.saturating_add(end.saturating_sub(begin));
        }
    }
}

#[derive(Debug)]
struct Op {
    first_start: u64,
    /// None until a message has ended.
    last_end: Option<u64>,
    unended: u64,
    network: BTreeMap<LinkKey, u64>,
}

/// Gathers the messages of one rank.
#[derive(Debug, Default)]
pub struct RankLinks {
    links: BTreeMap<LinkKey, Link>,
    ops: BTreeMap<u64, Op>,
}

impl RankLinks {
    pub fn add(&mut self, message: &MessageRow) {
        let key = LinkKey { op: message.op, peer: message.peer, channel: message.channel };
        let link = self.links.entry(key).or_default();
        link.sums.add_size(message);
        if !message.is_measured() {
            return;
        }
        link.sums.add_times(message);
        let Some(begin) = message.begin() else { return };
        let ended = message.t_end_ns.get();
        let end = ended.unwrap_or(begin);
        match &mut link.span {
            Some((seq, first, last)) if *seq == message.seq => {
                (*first, *last) = ((*first).min(begin), (*last).max(end));
            }
            _ => {
                link.end_op();
                link.span = Some((message.seq, begin, end));
            }
        }
        let op = self.ops.entry(message.seq).or_insert(Op {
            first_start: begin,
            last_end: ended,
            unended: 0,
            network: BTreeMap::new(),
        });
        op.first_start = op.first_start.min(begin);
        op.last_end = op.last_end.max(ended);
        op.unended += u64::from(ended.is_none());
        let network = op.network.entry(key).or_default();
        *network = network.saturating_add(message.wait_network_ns.get().unwrap_or(0));
    }

    /// Adds messages that were only planned.
    pub fn add_sums(&mut self, sums: &MessageSums) {
        let key = LinkKey { op: sums.op, peer: sums.peer, channel: sums.channel };
        self.links.entry(key).or_default().sums.add_sums(sums);
    }

    /// Returns the rows of all links, ordered by link.
    pub fn rows(&mut self) -> Vec<LinkRow> {
        let summary = |quantiles: &Quantiles| {
            Some(WaitRow {
                messages: quantiles.count,
                total_ns: quantiles.total,
                p50_ns: quantiles.percentile(50)?,
                p99_ns: quantiles.percentile(99)?,
                max_ns: quantiles.max,
            })
        };
        self.links
            .iter_mut()
            .map(|(key, link)| {
                link.end_op();
                let sums = &link.sums;
                let bandwidth = u128::from(sums.bytes_timed) * 1_000_000_000;
                LinkRow {
                    op: key.op,
                    peer: key.peer,
                    channel: key.channel,
                    transport: sums.transport,
                    messages: sums.messages,
                    messages_measured: sums.times.count,
                    bytes: sums.bytes,
                    busy_ns: link.busy_ns,
                    bandwidth: bandwidth
                        .checked_div(u128::from(link.busy_ns))
                        .and_then(|bandwidth| u64::try_from(bandwidth).ok()),
                    message: summary(&sums.times),
                    waits: Wait::ALL
                        .into_iter()
                        .zip(&sums.waits)
                        .filter_map(|(wait, quantiles)| Some((wait, summary(quantiles)?)))
                        .collect(),
                }
            })
            .collect()
    }

    /// Returns the times of an op; `None` if none of its messages was measured to its end.
    pub fn op(&self, seq: u64) -> Option<OpTimes> {
        let op = self.ops.get(&seq)?;
        // Sends first: a send's time in the network does not include a wait for the sender, as a receive's
        // does.
        let sends = op.network.iter().filter(|(key, _)| key.op == Direction::Send);
        let slowest = sends.max_by_key(|(_, network)| **network);
        let (link, network) = slowest.or_else(|| op.network.iter().max_by_key(|(_, network)| **network))?;
        Some(OpTimes {
            first_start_ns: op.first_start,
            last_end_ns: op.last_end?,
            unended: op.unended,
            slowest_link: *link,
            slowest_link_network_ns: *network,
        })
    }

    /// Returns the times of all ops, ordered by number.
    pub fn ops(&self) -> Vec<OpTimesRow> {
        self.ops.keys().filter_map(|seq| Some(OpTimesRow { seq: *seq, times: self.op(*seq)? })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{made::rows::message_rows, schema::Observed};

    #[test]
    fn links_and_ops_are_summed_up() {
        let mut links = RankLinks::default();
        let usual = MessageRow { channel: 1, bytes: 50, ..message_rows()[0].clone() };
        for (step, begin, end) in [(0, 100, 300), (2, 200, 600)] {
            links.add(&MessageRow {
                seq: 4,
                step,
                op: Direction::Send,
                peer: 3,
                t_slot_free_ns: Observed::Known(begin),
                t_end_ns: Observed::Known(end),
                bytes_measured: Observed::Known(40),
                wait_network_ns: Observed::Known(step),
                ..usual.clone()
            });
        }
        links.add(&MessageRow { seq: 6, op: Direction::Recv, peer: 2, ..usual.clone() });
        // Cut off by the end of the recording.
        let unended = Observed::Known(700);
        links.add(&MessageRow { seq: 7, op: Direction::Recv, peer: 2, t_slot_free_ns: unended, ..usual });
        let rows = links.rows();
        assert_eq!(rows.len(), 2);
        let (received, sent) = (&rows[0], &rows[1]);
        assert_eq!((sent.messages, sent.messages_measured, sent.bytes, sent.busy_ns), (2, 2, 80, 500));
        assert_eq!(sent.bandwidth, Some(160_000_000));
        assert_eq!(sent.waits[&Wait::Network].total_ns, 2);
        assert_eq!((received.messages, received.messages_measured, received.bytes), (2, 0, 100));
        let times = links.op(4).unwrap();
        assert_eq!((times.first_start_ns, times.last_end_ns, times.slowest_link.peer), (100, 600, 3));
        assert_eq!([6, 7].map(|seq| links.op(seq)), [None, None]);
        assert_eq!(links.ops().len(), 1);
    }
}
