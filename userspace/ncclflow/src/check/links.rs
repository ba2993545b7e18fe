//! Per rank: what went over each link, how long it took and who was waited for; and the times of each op.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{lines::StepLine, quantiles::Quantiles};
use nccl_library::nccl::Direction;

/// A link as this rank sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LinkKey {
    /// This rank sends, or receives.
    pub op: Direction,
    pub peer: i32,
    pub channel: u32,
}

/// Nanoseconds of one kind of wait over all messages of a link; `p50` and `p99` to within 3 %.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WaitSummary {
    pub messages: u64,
    pub total_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// What went over a link.
#[derive(Clone, Debug, Serialize)]
pub struct LinkSummary {
    #[serde(flatten)]
    pub key: LinkKey,
    pub transport: String,
    pub messages: u64,
    /// Of them, those that were measured to their end.
    #[serde(rename = "messagesMeasured")]
    pub measured: u64,
    /// Measured where it was measured, or else planned.
    pub bytes: u64,
    /// Time in which ops had messages under way, one op after the other.
    pub busy_ns: u64,
    /// `bytes` of measured messages over `busy_ns`, in bytes a second.
    pub bandwidth: Option<u64>,
    /// From when a message could begin to its end.
    pub message: Option<WaitSummary>,
    pub waits: BTreeMap<&'static str, WaitSummary>,
}

/// Of one op of this rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpTimes {
    /// When its first message could begin.
    pub first_start_ns: u64,
    /// When its last message ended.
    pub last_end_ns: u64,
    /// Messages that did not end.
    pub unended: u64,
    /// The link whose messages were under way in the network for longest, all together.
    pub slowest_link: LinkKey,
    pub slowest_link_network_ns: u64,
}

/// An op by its number.
#[derive(Clone, Debug, Serialize)]
pub struct OpSummary {
    pub seq: u64,
    #[serde(flatten)]
    pub times: OpTimes,
}

const WAITS: [&str; 7] = [
    "gpu_ready",
    "peer_buffer",
    "gpu_ready_or_peer_buffer",
    "network",
    "flush",
    "gpu_consume",
    "flush_or_gpu_consume",
];

fn waits_of(line: &StepLine) -> [Option<u64>; 7] {
    [
        line.wait_gpu_ready_ns,
        line.wait_peer_buffer_ns,
        line.wait_gpu_ready_or_peer_buffer_ns,
        line.wait_network_ns,
        line.wait_flush_ns,
        line.wait_gpu_consume_ns,
        line.wait_flush_or_gpu_consume_ns,
    ]
}

#[derive(Debug, Default)]
struct Link {
    transport: String,
    messages: u64,
    bytes: u64,
    measured_bytes: u64,
    whole: Quantiles,
    waits: [Quantiles; 7],
    busy_ns: u64,
    /// Of the op that is being read.
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
    last_end: u64,
    unended: u64,
    network: BTreeMap<LinkKey, u64>,
}

/// Gathers the lines of one rank.
#[derive(Debug, Default)]
pub struct RankSummary {
    links: BTreeMap<LinkKey, Link>,
    ops: BTreeMap<u64, Op>,
}

impl RankSummary {
    pub fn add(&mut self, line: &StepLine) {
        let key = LinkKey { op: line.op, peer: line.peer, channel: line.channel };
        let link = self.links.entry(key.clone()).or_default();
        if link.transport.is_empty() {
            link.transport.clone_from(&line.transport);
        }
        link.messages += 1;
        link.bytes = link.bytes.saturating_add(line.bytes_measured.unwrap_or(line.bytes));
        if !line.is_measured() {
            return;
        }
        for (quantiles, wait) in link.waits.iter_mut().zip(waits_of(line)) {
            if let Some(wait) = wait {
                quantiles.add(wait);
            }
        }
        let Some(begin) = line.begin() else { return };
        let end = line.t_end_ns.unwrap_or(begin);
        if line.t_end_ns.is_some() {
            link.whole.add(end.saturating_sub(begin));
            link.measured_bytes =
                link.measured_bytes.saturating_add(line.bytes_measured.unwrap_or(line.bytes));
        }
        match &mut link.span {
            Some((seq, first, last)) if *seq == line.seq => {
                (*first, *last) = ((*first).min(begin), (*last).max(end));
            }
            _ => {
                link.end_op();
                link.span = Some((line.seq, begin, end));
            }
        }
        let op = self.ops.entry(line.seq).or_insert(Op {
            first_start: begin,
            last_end: end,
            unended: 0,
            network: BTreeMap::new(),
        });
        op.first_start = op.first_start.min(begin);
        op.last_end = op.last_end.max(end);
        op.unended += u64::from(line.t_end_ns.is_none());
        let network = op.network.entry(key).or_default();
        *network = network.saturating_add(line.wait_network_ns.unwrap_or(0));
    }

    /// By link.
    pub fn links(&mut self) -> Vec<LinkSummary> {
        let summary = |quantiles: &Quantiles| {
            Some(WaitSummary {
                messages: quantiles.count(),
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
                let bandwidth = u128::from(link.measured_bytes) * 1_000_000_000;
                LinkSummary {
                    key: key.clone(),
                    transport: link.transport.clone(),
                    messages: link.messages,
                    measured: link.whole.count(),
                    bytes: link.bytes,
                    busy_ns: link.busy_ns,
                    bandwidth: bandwidth
                        .checked_div(u128::from(link.busy_ns))
                        .and_then(|bandwidth| u64::try_from(bandwidth).ok()),
                    message: summary(&link.whole),
                    waits: WAITS
                        .iter()
                        .zip(&link.waits)
                        .filter_map(|(name, quantiles)| Some((*name, summary(quantiles)?)))
                        .collect(),
                }
            })
            .collect()
    }

    /// The times of an op; nothing if none of its messages was measured.
    pub fn op(&self, seq: u64) -> Option<OpTimes> {
        let op = self.ops.get(&seq)?;
        // A send's time in the network is not also that of the receive's wait for the sender.
        let sends = op.network.iter().filter(|(key, _)| key.op == Direction::Send);
        let slowest = sends.max_by_key(|(_, network)| **network);
        let (link, network) = slowest.or_else(|| op.network.iter().max_by_key(|(_, network)| **network))?;
        Some(OpTimes {
            first_start_ns: op.first_start,
            last_end_ns: op.last_end,
            unended: op.unended,
            slowest_link: link.clone(),
            slowest_link_network_ns: *network,
        })
    }

    /// By number.
    pub fn ops(&self) -> Vec<OpSummary> {
        self.ops.keys().filter_map(|seq| Some(OpSummary { seq: *seq, times: self.op(*seq)? })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> StepLine {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn links_and_ops_are_summed_up() {
        let mut summary = RankSummary::default();
        for (step, begin, end) in [(0, 100, 300), (2, 200, 600)] {
            summary.add(&line(&format!(
                r#"{{"seq":4,"channel":1,"step":{step},"op":"SEND","peer":3,"bytes":50,"stage":"ring","transport":"NET",
                "t_slot_free_ns":{begin},"t_end_ns":{end},"bytes_measured":40,"wait_network_ns":{step}}}"#
            )));
        }
        summary.add(&line(
            r#"{"seq":6,"channel":1,"step":0,"op":"RECV","peer":2,"bytes":50,"stage":"ring","transport":"P2P"}"#,
        ));
        let links = summary.links();
        assert_eq!(links.len(), 2);
        let (received, sent) = (&links[0], &links[1]);
        assert_eq!((sent.messages, sent.measured, sent.bytes, sent.busy_ns), (2, 2, 80, 500));
        assert_eq!(sent.bandwidth, Some(160_000_000));
        assert_eq!(sent.waits["network"].total_ns, 2);
        assert_eq!((received.messages, received.measured, received.bytes), (1, 0, 50));
        let times = summary.op(4).unwrap();
        assert_eq!((times.first_start_ns, times.last_end_ns, times.slowest_link.peer), (100, 600, 3));
        assert_eq!(summary.op(6), None);
        assert_eq!(summary.ops().len(), 1);
    }
}
