//! Has every SEND its RECV?
//!
//! Sends and receives between two ranks match in their order. Where a recording begins in the middle, one
//! side can have some more at its beginning, and where it ends in the middle, at its end.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    collectives::MAX_LISTED,
    communicator_check::{Finding, FindingKind},
    memory_limit::Room,
};
use flow::schema::OpRow;
use flow::text::name_ranks;
use nccl_library::nccl::Direction;

/// Distance from a recording's beginning or end within which a call's other half can be outside.
const BORDER_NS: u64 = 1_000_000_000;

/// Memory, about, of a pair of ranks, and of a call: vectors grow by doubling.
const PAIR_BYTES: usize = 160;
const CALL_BYTES: usize = 2 * size_of::<Call>();

#[derive(Clone, Copy, Debug)]
struct Call {
    seq: u64,
    bytes: Option<u64>,
    wall_ns: u64,
}

#[derive(Debug, Default)]
struct Pair {
    /// Sends, receives.
    calls: [Vec<Call>; 2],
    /// There was no memory for all: they are not compared.
    is_cut: bool,
}

#[derive(Debug, Default)]
pub(super) struct PointToPoint {
    /// Pairs by sender and receiver.
    pairs: BTreeMap<(i32, i32), Pair>,
    /// No memory for further pairs: none is compared.
    no_pairs: bool,
    /// Wall times from and until which each rank was watched.
    watched: BTreeMap<i32, (u64, u64)>,
    /// Ranks whose processes lost records: sends and receives can be missing.
    lost: BTreeSet<i32>,
}

impl PointToPoint {
    pub(super) fn rank(&mut self, rank: i32, started: Option<u64>, ended: Option<u64>, offset: Option<u64>) {
        let wall = |time: Option<u64>| time?.checked_add(offset?);
        if let (Some(started), Some(ended)) = (wall(started), wall(ended)) {
            self.watched.insert(rank, (started, ended));
        } else {
            self.watched.remove(&rank);
        }
    }

    pub(super) fn add(&mut self, line: &OpRow, offset: Option<u64>, room: &mut Room) {
        if line.incomplete {
            self.lost.insert(line.rank);
        }
        if !line.pattern.is_p2p() || line.captured_seq.is_some() {
            return;
        }
        for peer in &line.peers {
            let (pair, side) = match peer.op {
                Direction::Send => ((line.rank, peer.peer), 0),
                Direction::Recv => ((peer.peer, line.rank), 1),
            };
            if !self.pairs.contains_key(&pair) && !room.take(PAIR_BYTES) {
                self.no_pairs = true;
                continue;
            }
            let pair = self.pairs.entry(pair).or_default();
            let Some(calls) = pair.calls.get_mut(side).filter(|_| !pair.is_cut) else { continue };
            // A call has a line for each channel.
            if calls.iter().rev().take(64).all(|call| call.seq != line.seq) {
                if !room.take(CALL_BYTES) {
                    pair.is_cut = true;
                    continue;
                }
                // Pairs of ranks that were not watched are not compared.
                let wall_ns = line.ts_ns.saturating_add(offset.unwrap_or(0));
                calls.push(Call { seq: line.seq, bytes: line.bytes, wall_ns });
            }
        }
    }

    /// Adds what was read of further ranks.
    pub(super) fn append(&mut self, more: Self, room: &mut Room) {
        self.watched.extend(more.watched);
        self.lost.extend(more.lost);
        self.no_pairs |= more.no_pairs;
        for (ranks, pair) in more.pairs {
            if !self.pairs.contains_key(&ranks) && !room.take(PAIR_BYTES) {
                self.no_pairs = true;
                continue;
            }
            let known = self.pairs.entry(ranks).or_default();
            let calls = pair.calls.iter().map(Vec::len).sum::<usize>();
            known.is_cut |= pair.is_cut || !room.take(calls * CALL_BYTES);
            if !known.is_cut {
                known.calls.iter_mut().zip(pair.calls).for_each(|(known, more)| known.extend(more));
            }
        }
    }

    /// Tells whether there was no memory to compare all of them.
    pub(super) fn is_cut(&self) -> bool {
        self.no_pairs || self.pairs.values().any(|pair| pair.is_cut)
    }

    pub(super) fn check(&self, findings: &mut Vec<Finding>) {
        let mut listed = 0;
        // Where pairs are missing altogether, one side may still be there.
        let whole = self.pairs.iter().filter(|(_, pair)| !pair.is_cut && !self.no_pairs);
        for ((from, to), Pair { calls: [sent, received], .. }) in whole {
            let (Some(sender), Some(receiver)) = (self.watched.get(from), self.watched.get(to)) else {
                continue;
            };
            let (start, end) = (sender.0.max(receiver.0), sender.1.min(receiver.1));
            let mut say = |kind, seq, text| {
                listed += 1;
                if listed <= MAX_LISTED {
                    findings.push(Finding { kind, seq, ranks: vec![*from, *to], text });
                }
            };
            if let (false, Some((left, right))) =
                (received.len() != sent.len(), first_difference(sent, received))
            {
                let text = format!(
                    "SEND from {from} to {to} of {} bytes meets a RECV of {}",
                    left.bytes.unwrap_or(0),
                    right.bytes.unwrap_or(0)
                );
                say(FindingKind::SizeMismatch, Some(left.seq), text);
            }
            let (longer, shorter, kind, what) = if sent.len() > received.len() {
                (sent, received, FindingKind::UnmatchedSend, ["SEND", "RECV"])
            } else {
                (received, sent, FindingKind::UnmatchedRecv, ["RECV", "SEND"])
            };
            // Calls near the recording's borders can have their other half outside.
            let inside = |call: &&Call| call.wall_ns > start + BORDER_NS && call.wall_ns + BORDER_NS < end;
            let extra = longer.len() - shorter.len();
            let at_end = longer.iter().rev().take(extra).filter(inside).count();
            let at_start = longer.iter().take(extra).filter(inside).count();
            // If the longer side begins like the shorter one, the rest lacks its other half at the end.
            let why = if at_end.min(at_start) > 0 {
                format!(": {} against {}", longer.len(), shorter.len())
            } else if at_end > 0 && first_difference(longer, shorter).is_none() {
                " at the end".to_owned()
            } else {
                continue;
            };
            let first = longer.get(shorter.len()).map(|call| call.seq);
            let lost: Vec<i32> = [*from, *to].into_iter().filter(|rank| self.lost.contains(rank)).collect();
            let lost = match &lost[..] {
                [] => String::new(),
                ranks => format!("; records of {} were lost", name_ranks(ranks)),
            };
            let [this, other] = what;
            say(kind, first, format!("{extra} {this} from {from} to {to} without a {other}{why}{lost}"));
        }
        if listed > MAX_LISTED {
            let text = format!("{} more findings about sends and receives", listed - MAX_LISTED);
            findings.push(Finding { kind: FindingKind::UnmatchedSend, seq: None, ranks: Vec::new(), text });
        }
    }
}

/// Returns the first two calls, in their order, with different sizes.
fn first_difference<'a>(sent: &'a [Call], received: &'a [Call]) -> Option<(&'a Call, &'a Call)> {
    sent.iter()
        .zip(received)
        .find(|(left, right)| left.bytes.is_some() && right.bytes.is_some() && left.bytes != right.bytes)
}

#[cfg(test)]
mod tests {
    use flow::{made::rows::op_row, schema::PeerRow};
    use nccl_library::nccl::Pattern;

    use super::*;

    const S: u64 = 1_000_000_000;

    fn line(rank: i32, op: Direction, peer: i32, seq: u64, bytes: u64) -> OpRow {
        let usual = op_row();
        OpRow {
            seq,
            rank,
            pattern: if op == Direction::Send { Pattern::Send } else { Pattern::Recv },
            n_ranks: 2,
            ts_ns: seq * S,
            bytes: Some(bytes),
            peers: vec![PeerRow { op, peer, ..usual.peers[0].clone() }],
            ..usual
        }
    }

    fn checked(sends: &[(u64, u64)], receives: &[(u64, u64)]) -> Vec<FindingKind> {
        let mut p2p = PointToPoint::default();
        for rank in 0..2 {
            p2p.rank(rank, Some(0), Some(20 * S), Some(5));
        }
        for (seq, bytes) in sends {
            p2p.add(&line(0, Direction::Send, 1, *seq, *bytes), Some(5), &mut Room::default());
        }
        for (seq, bytes) in receives {
            p2p.add(&line(1, Direction::Recv, 0, *seq, *bytes), Some(5), &mut Room::default());
        }
        let mut findings = Vec::new();
        p2p.check(&mut findings);
        findings.into_iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn pairs_match_in_their_order() {
        let calls = [(5, 10), (7, 20), (9, 10)];
        assert_eq!(checked(&calls, &calls), []);
        assert_eq!(checked(&calls, &calls[..2]), [FindingKind::UnmatchedSend]);
        assert_eq!(checked(&calls[..1], &calls), [FindingKind::UnmatchedRecv]);
        assert_eq!(checked(&calls, &[(5, 10), (7, 21), (9, 10)]), [FindingKind::SizeMismatch]);
        // At the border of the recording.
        assert_eq!(checked(&[(5, 10), (19, 10)], &[(5, 10)]), []);
    }

    /// A process that lost records can lack a call that the job made.
    #[test]
    fn a_finding_says_that_records_were_lost() {
        let mut folders = [0, 1].map(|rank| {
            let mut p2p = PointToPoint::default();
            p2p.rank(rank, Some(0), Some(20 * S), Some(5));
            p2p
        });
        for seq in [5, 7, 9] {
            folders[0].add(&line(0, Direction::Send, 1, seq, 10), Some(5), &mut Room::default());
        }
        let lossy = OpRow { incomplete: true, ..line(1, Direction::Recv, 0, 5, 10) };
        folders[1].add(&lossy, Some(5), &mut Room::default());
        let [mut p2p, receiver] = folders;
        p2p.append(receiver, &mut Room::default());
        let mut findings = Vec::new();
        p2p.check(&mut findings);
        let texts: Vec<_> = findings.into_iter().map(|finding| finding.text).collect();
        assert_eq!(texts, ["2 SEND from 0 to 1 without a RECV: 3 against 1; records of rank 1 were lost"]);
    }

    #[test]
    fn what_does_not_fit_is_not_compared() {
        let mut p2p = PointToPoint::default();
        (0..2).for_each(|rank| p2p.rank(rank, Some(0), Some(20 * S), Some(5)));
        let mut room = Room { bytes: PAIR_BYTES + 3 * CALL_BYTES };
        for seq in [5, 7, 9] {
            p2p.add(&line(0, Direction::Send, 1, seq, 10), Some(5), &mut room);
            p2p.add(&line(1, Direction::Recv, 0, seq, 10), Some(5), &mut room);
        }
        let mut findings = Vec::new();
        p2p.check(&mut findings);
        assert!(p2p.is_cut() && findings.is_empty(), "{findings:?}");
    }
}
