//! Do all ranks of a communicator run the same collectives, in the same order?
//!
//! A collective has one number (`seq`) on all ranks, which is NCCL's own count. So ranks that ran different
//! things, or the same in another order, have different ops under one number.

use std::collections::{BTreeMap, HashMap};

use super::{
    by_number::{ByNumber, Collective},
    call::Call,
    communicator_check::{Finding, FindingKind},
    memory_limit::Room,
};

use flow::text::name_ranks;
use flow::{
    schema::{ApiCallRow, OpRow},
    statistics::Ranges,
};

/// Most findings of one kind that are listed; further ones are counted.
pub(super) const MAX_LISTED: usize = 20;

#[derive(Debug, Default)]
struct RankOps {
    /// Collectives that the rank ran.
    ran: Ranges,
    /// End of its recording, and offset of its clock to wall time, where known.
    ended: Option<u64>,
    offset: Option<u64>,
    lost: bool,
    /// Launches without proxy ops. NCCL gives them no numbers, so they are compared with nothing.
    launches: u64,
    /// Wall time of its latest launch, and the longest time between two.
    moved_ns: u64,
    longest_pause_ns: u64,
}

/// A collective at which ranks differ, before their source lines are known.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) number: u64,
    /// Wall times, among the ranks whose clock is known, at which it and the one before it were first seen.
    pub(super) first_seen_ns: u64,
    pub(super) before_seen_ns: Option<u64>,
    /// Ranks by what they ran under its number; `None`: nothing.
    pub(super) groups: Vec<(Option<Call>, Vec<i32>)>,
}

#[derive(Debug, Default)]
pub(super) struct Collectives {
    calls: Vec<Call>,
    numbers: HashMap<String, u32>,
    /// The first rank's call under each number.
    by_number: ByNumber,
    /// Calls that differ from that, by number and rank.
    others: BTreeMap<(u64, i32), u32>,
    ranks: BTreeMap<i32, RankOps>,
    pub(super) n_ranks: i32,
    /// First number from which on, for want of memory, collectives are not compared.
    pub(super) not_compared_from: Option<u64>,
}

/// Time after an op was first seen for which a rank must have been watched to have missed it. Wall clocks of
/// hosts differ less.
const LATE_NS: u64 = 1_000_000_000;

/// Memory, about, of a call, and of a rank that ran another one.
const CALL_BYTES: usize = 512;
const OTHER_BYTES: usize = 48;

impl RankOps {
    /// Returns the wall time until which the rank was watched.
    fn watched_until(&self) -> Option<u64> {
        self.ended.zip(self.offset).map(|(ended, offset)| ended.saturating_add(offset))
    }
}

impl Collectives {
    pub(super) fn rank(&mut self, rank: i32, ended: Option<u64>, offset: Option<u64>) {
        let ops = self.ranks.entry(rank).or_default();
        (ops.ended, ops.offset) = (ended, offset);
    }

    pub(super) fn add(&mut self, line: &OpRow, room: &mut Room) {
        self.n_ranks = self.n_ranks.max(line.n_ranks);
        let Some(rank) = self.ranks.get_mut(&line.rank) else { return };
        rank.lost |= line.incomplete;
        rank.launches += u64::from(line.pattern.has_no_ops());
        // The lowest bit of a collective's is 0.
        // A replay that a launch of its graph tells has the number of the captured op.
        if !line.pattern.is_p2p() && line.graph_launch.is_none() && line.seq.is_multiple_of(2) {
            self.ran(line.rank, line.seq / 2, line.ts_ns, || Call::of(line), room);
        }
    }

    /// Takes a call of a collective that NCCL counts, where ops were not recorded.
    pub(super) fn add_call(&mut self, rank: i32, number: u64, row: &ApiCallRow, room: &mut Room) {
        self.n_ranks = self.n_ranks.max(row.n_ranks.unwrap_or(0));
        self.ran(rank, number, row.ts_ns, || Call::of_call(row), room);
    }

    fn ran(&mut self, of: i32, number: u64, ts_ns: u64, call: impl FnOnce() -> Call, room: &mut Room) {
        let Some(rank) = self.ranks.get_mut(&of) else { return };
        let ranges = rank.ran.ranges();
        if !rank.ran.insert(number) {
            return;
        }
        let wall_ns = rank.offset.map_or(u64::MAX, |offset| ts_ns.saturating_add(offset));
        if rank.moved_ns > 0 {
            rank.longest_pause_ns = rank.longest_pause_ns.max(wall_ns.saturating_sub(rank.moved_ns));
        }
        rank.moved_ns = rank.moved_ns.max(wall_ns);
        let has_room = rank.ran.ranges() <= ranges || room.take(Ranges::BYTES);
        let call = self.number_of(call(), room);
        let noted = call.filter(|_| has_room).and_then(|call| self.note(number, call, wall_ns, room));
        match noted {
            Some(true) => {}
            Some(false) if room.take(OTHER_BYTES) => {
                self.others.insert((number, of), call.unwrap_or_default());
            }
            _ => self.leave_out(number),
        }
    }

    /// Returns the index of a call; `None` if there is no room for it.
    fn number_of(&mut self, call: Call, room: &mut Room) -> Option<u32> {
        let described = call.describe();
        if let Some(number) = self.numbers.get(&described) {
            return Some(*number);
        }
        let number = u32::try_from(self.calls.len()).ok().filter(|_| room.take(CALL_BYTES))?;
        self.numbers.insert(described, number);
        self.calls.push(call);
        Some(number)
    }

    /// Notes a rank's call. `false`: other ranks ran another one. `None`: there is no room.
    fn note(&mut self, number: u64, call: u32, wall_ns: u64, room: &mut Room) -> Option<bool> {
        let known = self.by_number.get(number);
        if known.is_none() && self.by_number.needs_chunk(number) && !room.take(ByNumber::CHUNK_BYTES) {
            return None;
        }
        let first = Collective { call, first_seen: wall_ns };
        let known = known.unwrap_or(first);
        let first_seen = known.first_seen.min(wall_ns);
        self.by_number.put(number, Collective { first_seen, ..known });
        Some(known.call == call)
    }

    fn leave_out(&mut self, number: u64) {
        self.not_compared_from = Some(self.not_compared_from.map_or(number, |from| from.min(number)));
    }

    /// Adds what was read of later ranks, none of which are in `self`.
    pub(super) fn append(&mut self, more: Self, room: &mut Room) {
        self.n_ranks = self.n_ranks.max(more.n_ranks);
        if let Some(number) = more.not_compared_from {
            self.leave_out(number);
        }
        let calls: Vec<Option<u32>> = more.calls.into_iter().map(|call| self.number_of(call, room)).collect();
        let known_as = |call: u32| calls.get(call as usize).copied().flatten();
        for (number, collective) in more.by_number.iter() {
            let noted = known_as(collective.call).and_then(|call| {
                self.note(number, call, collective.first_seen, room).map(|same| (call, same))
            });
            let Some((call, is_same)) = noted else {
                self.leave_out(number);
                continue;
            };
            if is_same {
                continue;
            }
            // The first call there is a differing one here.
            for (rank, _) in more.ranks.iter().filter(|(_, ops)| ops.ran.contains(number)) {
                if more.others.contains_key(&(number, *rank)) {
                    continue;
                }
                if !room.take(OTHER_BYTES) {
                    self.leave_out(number);
                    break;
                }
                self.others.insert((number, *rank), call);
            }
        }
        for ((number, rank), call) in more.others {
            let known = self.by_number.get(number).map(|known| known.call);
            match known_as(call) {
                Some(call) if known == Some(call) => {}
                Some(call) if room.take(OTHER_BYTES) => {
                    self.others.insert((number, rank), call);
                }
                _ => self.leave_out(number),
            }
        }
        for (rank, ops) in more.ranks {
            if !room.take(ops.ran.ranges() * Ranges::BYTES) {
                self.not_compared_from = Some(0);
            }
            self.ranks.insert(rank, ops);
        }
    }

    /// Returns what ranks ran under this number, and when the first was seen in it. `absent`: ranks known not
    /// to have run it; of others that did not, nothing is known.
    pub(super) fn at(&self, number: u64, absent: &[i32]) -> Option<Difference> {
        let first_seen = |number| self.by_number.get(number).map(|collective| collective.first_seen);
        let (first_seen_ns, before_seen_ns) =
            (first_seen(number)?, number.checked_sub(1).and_then(first_seen));
        let mut by_call: BTreeMap<Option<u32>, Vec<i32>> = BTreeMap::new();
        for (rank, ops) in &self.ranks {
            let call = self.call_of(*rank, ops, number);
            if call.is_some() || absent.contains(rank) {
                by_call.entry(call).or_default().push(*rank);
            }
        }
        let known = |call: Option<u32>| call.and_then(|call| self.call(call)).cloned();
        let groups = by_call.into_iter().map(|(call, ranks)| (known(call), ranks)).collect();
        Some(Difference { number, first_seen_ns, before_seen_ns, groups })
    }

    pub(super) fn ranks(&self) -> Vec<i32> {
        self.ranks.keys().copied().collect()
    }

    pub(super) fn has(&self, rank: i32) -> bool {
        self.ranks.contains_key(&rank)
    }

    pub(super) fn has_any_of(&self, other: &Self) -> bool {
        other.ranks.keys().any(|rank| self.has(*rank))
    }

    /// Counts the collectives of the rank that has most.
    pub(super) fn ops(&self) -> u64 {
        self.ranks.values().map(|rank| rank.ran.count).max().unwrap_or(0)
    }

    /// Counts the launches without proxy ops of the rank that has most.
    pub(super) fn launches(&self) -> u64 {
        self.ranks.values().map(|rank| rank.launches).max().unwrap_or(0)
    }

    pub(super) fn check(&self, findings: &mut Vec<Finding>) {
        let (mut differing, mut missing) = (Vec::new(), BTreeMap::new());
        let until = self.not_compared_from.unwrap_or(u64::MAX);
        let stands = self.stands();
        for (number, collective) in self.by_number.iter().take_while(|(number, _)| *number < until) {
            self.same_call(number, collective.call, &mut differing);
            self.all_joined((number, collective.first_seen), stands, &mut missing);
        }
        let more = differing.len().saturating_sub(MAX_LISTED);
        findings.extend(differing.into_iter().take(MAX_LISTED));
        if more > 0 {
            let text = format!("{more} more collectives differ between ranks");
            let kind = FindingKind::CollectiveMismatch;
            findings.push(Finding { kind, seq: None, ranks: Vec::new(), text });
        }
        findings.extend(missing.into_values());
    }

    fn others(&self, number: u64) -> impl Iterator<Item = (i32, u32)> {
        self.others.range((number, i32::MIN)..=(number, i32::MAX)).map(|((_, rank), call)| (*rank, *call))
    }

    /// Returns a rank's call under this number.
    fn call_of(&self, rank: i32, ops: &RankOps, number: u64) -> Option<u32> {
        let first = || Some(self.by_number.get(number)?.call);
        self.others.get(&(number, rank)).copied().or_else(first).filter(|_| ops.ran.contains(number))
    }

    /// Checks that the ranks that ran it ran the same; `first` is what one of them ran.
    fn same_call(&self, number: u64, first: u32, differing: &mut Vec<Finding>) {
        if self.others(number).next().is_none() {
            return;
        }
        let mut by_call: BTreeMap<u32, Vec<i32>> = BTreeMap::new();
        for (rank, ops) in &self.ranks {
            if let Some(call) = self.call_of(*rank, ops, number) {
                by_call.entry(call).or_default().push(*rank);
            }
        }
        // The call of most ranks is taken for right.
        let usual = by_call.iter().max_by_key(|(_, ranks)| ranks.len()).map_or(first, |(call, _)| *call);
        for (call, ranks) in by_call.iter().filter(|(call, _)| **call != usual) {
            let (Some(call), Some(usual)) = (self.call(*call), self.call(usual)) else { continue };
            let Some(what) = call.difference(usual) else { continue };
            let kind = if what == "another operation" && self.is_elsewhere(number, call, ranks) {
                FindingKind::OrderMismatch
            } else {
                FindingKind::CollectiveMismatch
            };
            let text = format!(
                "collective {number}: {what} on {}: {}; the others run {}",
                name_ranks(ranks),
                call.describe(),
                usual.describe()
            );
            differing.push(Finding { kind, seq: Some(number * 2), ranks: ranks.clone(), text });
        }
    }

    fn call(&self, number: u32) -> Option<&Call> {
        self.calls.get(number as usize)
    }

    /// Tells whether another rank runs this call just before or after: then the order differs.
    fn is_elsewhere(&self, number: u64, call: &Call, except: &[i32]) -> bool {
        self.ranks.iter().filter(|(rank, _)| !except.contains(rank)).any(|(rank, ops)| {
            let near = [number.wrapping_sub(1), number.saturating_add(1)];
            near.iter()
                .filter_map(|number| self.call_of(*rank, ops, *number))
                .any(|other| self.call(other).is_some_and(|other| other.difference(call).is_none()))
        })
    }

    /// Tells whether nothing moved at the end: no rank launched anything for a second, and for twice as long
    /// as ever before.
    pub(super) fn stands(&self) -> bool {
        let moved_ns = self.ranks.values().map(|rank| rank.moved_ns).max().unwrap_or(0);
        let pause_ns = self.ranks.values().map(|rank| rank.longest_pause_ns).max().unwrap_or(0);
        let ended = self.ranks.values().filter_map(RankOps::watched_until).max();
        ended.is_some_and(|ended| ended.saturating_sub(moved_ns) >= LATE_NS.max(pause_ns.saturating_mul(2)))
    }

    /// Checks that all ranks joined that were watched for long enough.
    fn all_joined(
        &self,
        (number, first_seen): (u64, u64),
        stands: bool,
        missing: &mut BTreeMap<i32, Finding>,
    ) {
        for (rank, ops) in &self.ranks {
            if ops.ran.contains(number) || missing.contains_key(rank) {
                continue;
            }
            let last = ops.ran.last();
            // Before its first one the rank was not watched yet.
            if ops.ran.first().is_some_and(|first| number < first) {
                continue;
            }
            let (kind, text) = if last.is_some_and(|last| number < last) {
                let lost = if ops.lost { "; records of its process were lost" } else { "" };
                (
                    FindingKind::MissingOp,
                    format!("rank {rank} has no collective {number}, and later ones{lost}"),
                )
            } else {
                let watched_until = ops.watched_until();
                if !stands || watched_until.is_none_or(|until| until < first_seen.saturating_add(LATE_NS)) {
                    continue;
                }
                let done = last.map_or_else(|| "none".to_owned(), |last| last.to_string());
                (
                    FindingKind::MissingJoin,
                    format!("rank {rank} has not joined collective {number} (its last: {done})"),
                )
            };
            missing.insert(*rank, Finding { kind, seq: Some(number * 2), ranks: vec![*rank], text });
        }
    }
}

#[cfg(test)]
mod tests {
    use flow::made::rows::op_row;

    use super::*;

    fn line(rank: i32, seq: u64, coll: &str, count: u64) -> OpRow {
        OpRow {
            seq,
            rank,
            coll: Some(coll.into()),
            coll_api: Some(coll.into()),
            n_ranks: 3,
            ts_ns: seq * 1000,
            count: Some(count),
            ..op_row()
        }
    }

    fn checked(lines: &[OpRow], ended: u64) -> Vec<(FindingKind, Option<u64>, Vec<i32>)> {
        let mut collectives = Collectives::default();
        for rank in 0..3 {
            collectives.rank(rank, Some(ended), Some(7));
        }
        for line in lines {
            collectives.add(line, &mut Room::default());
        }
        let mut findings = Vec::new();
        collectives.check(&mut findings);
        findings.into_iter().map(|finding| (finding.kind, finding.seq, finding.ranks)).collect()
    }

    /// Ops 2, 4 and 6 of three ranks, one of which can be changed.
    fn job(change: impl Fn(i32, u64) -> Option<OpRow>) -> Vec<OpRow> {
        let ops = [(2, "AllReduce"), (4, "AllGather"), (6, "AllReduce")];
        (0..3)
            .flat_map(|rank| ops.map(|(seq, coll)| (rank, seq, coll)))
            .filter_map(
                |(rank, seq, coll)| {
                    if rank == 1 { change(rank, seq) } else { Some(line(rank, seq, coll, 10)) }
                },
            )
            .collect()
    }

    fn usual(rank: i32, seq: u64) -> OpRow {
        line(rank, seq, if seq == 4 { "AllGather" } else { "AllReduce" }, 10)
    }

    #[test]
    fn the_same_everywhere_is_fine() {
        assert_eq!(checked(&job(|rank, seq| Some(usual(rank, seq))), 100), []);
        // A rank attached later.
        assert_eq!(checked(&job(|rank, seq| (seq > 2).then(|| usual(rank, seq))), 100), []);
        // Its recording ended with the op.
        assert_eq!(checked(&job(|rank, seq| (seq < 6).then(|| usual(rank, seq))), 100), []);
    }

    #[test]
    fn what_differs_is_named() {
        let other_count =
            job(|rank, seq| Some(if seq == 4 { line(rank, 4, "AllGather", 11) } else { usual(rank, seq) }));
        assert_eq!(checked(&other_count, 100), [(FindingKind::CollectiveMismatch, Some(4), vec![1])]);
        let swapped = job(|rank, seq| {
            Some(match seq {
                2 => line(rank, 2, "AllGather", 10),
                4 => line(rank, 4, "AllReduce", 10),
                _ => usual(rank, seq),
            })
        });
        let order = FindingKind::OrderMismatch;
        assert_eq!(checked(&swapped, 100), [(order, Some(2), vec![1]), (order, Some(4), vec![1])]);
        let missing = job(|rank, seq| (seq != 4).then(|| usual(rank, seq)));
        assert_eq!(checked(&missing, 100), [(FindingKind::MissingOp, Some(4), vec![1])]);
        let never = job(|rank, seq| (seq < 4).then(|| usual(rank, seq)));
        assert_eq!(checked(&never, 3 * LATE_NS), [(FindingKind::MissingJoin, Some(4), vec![1])]);
    }

    /// Ranks of several folders, in any order, are checked like those of one.
    #[test]
    fn folders_are_put_together() {
        let changed = |rank: i32, seq: u64| {
            (seq != 6).then(|| line(rank, seq, if seq == 4 { "Broadcast" } else { "AllReduce" }, 10))
        };
        let lines = job(changed);
        let expected = checked(&lines, 3 * LATE_NS);
        assert_eq!(expected.len(), 2);
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let (mut room, mut all) = (Room::default(), Collectives::default());
            for rank in order {
                let mut of_rank = Collectives::default();
                of_rank.rank(rank, Some(3 * LATE_NS), Some(7));
                lines.iter().filter(|line| line.rank == rank).for_each(|line| of_rank.add(line, &mut room));
                all.append(of_rank, &mut room);
            }
            let mut findings = Vec::new();
            all.check(&mut findings);
            let found: Vec<_> =
                findings.into_iter().map(|finding| (finding.kind, finding.seq, finding.ranks)).collect();
            assert_eq!(found, expected, "{order:?}");
        }
    }

    /// Tests that nothing false is found where memory ends, and that this is reported.
    #[test]
    fn what_does_not_fit_is_not_compared() {
        for bytes in [0, CALL_BYTES, 4 * CALL_BYTES, 1 << 20] {
            let (mut room, mut collectives) = (Room { bytes }, Collectives::default());
            (0..3).for_each(|rank| collectives.rank(rank, Some(u64::MAX), Some(0)));
            for number in 0..1000u64 {
                for rank in 0..3 {
                    // The last rank runs something else from 900 on.
                    let count = if rank == 2 && number >= 900 { 11 } else { 10 };
                    collectives.add(&line(rank, number * 2, "AllReduce", count), &mut room);
                }
            }
            let mut findings = Vec::new();
            collectives.check(&mut findings);
            let from = collectives.not_compared_from;
            if bytes == 1 << 20 {
                assert_eq!((from, findings.len()), (None, MAX_LISTED + 1));
            } else {
                assert!(from.is_some_and(|from| from < 900), "{bytes}: {from:?}");
                assert_eq!(findings, [], "{bytes}");
            }
        }
    }
}
