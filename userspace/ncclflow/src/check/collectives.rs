//! Do all ranks of a communicator run the same collectives, in the same order?
//!
//! A collective has one number (`seq`) on all ranks, which is NCCL's own count, so ranks that ran different
//! things, or the same in another order, have different ops under one number.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::communicator_check::{Finding, FindingKind};

use flow::schema::OpRow;
use nccl_library::nccl::Name;

/// Findings of one kind that are listed one by one; of more the number is said.
pub(super) const MAX_LISTED: usize = 20;

/// What must be the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    coll: Name,
    count: Option<u64>,
    dtype: Option<Name>,
    red_op: Option<Name>,
    root: Option<i32>,
}

impl Call {
    fn of(line: &OpRow) -> Self {
        let coll = line.coll_api.clone().or_else(|| line.coll.clone()).unwrap_or_else(|| "".into());
        let rooted = matches!(coll.as_str(), "Broadcast" | "Reduce" | "Gather" | "Scatter");
        let reduces = matches!(coll.as_str(), "AllReduce" | "Reduce" | "ReduceScatter");
        Self {
            count: line.count,
            dtype: line.dtype.clone(),
            red_op: line.red_op.clone().filter(|_| reduces),
            root: rooted.then_some(line.root),
            coll,
        }
    }

    /// The first thing in which they differ.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        if self.coll != other.coll {
            return Some("another operation");
        }
        if self.count.is_some() && other.count.is_some() && self.count != other.count {
            return Some("another count");
        }
        if self.dtype != other.dtype {
            return Some("another data type");
        }
        if self.red_op != other.red_op {
            return Some("another reduction");
        }
        (self.root != other.root).then_some("another root")
    }

    fn describe(&self) -> String {
        let mut words = vec![self.coll.to_string()];
        words.extend(self.count.map(|count| format!("of {count}")));
        words.extend(self.dtype.as_ref().map(Name::to_string));
        words.extend(self.red_op.as_ref().map(Name::to_string));
        words.extend(self.root.map(|root| format!("root {root}")));
        words.join(" ")
    }
}

#[derive(Debug, Default)]
struct RankOps {
    /// Index into the calls, and when it was first seen.
    by_seq: BTreeMap<u64, (usize, u64)>,
    /// When its recording ended, and how far its clock is from wall time.
    ended: Option<u64>,
    offset: u64,
    lost: bool,
}

#[derive(Debug, Default)]
pub(super) struct Collectives {
    calls: Vec<Call>,
    numbers: HashMap<String, usize>,
    ranks: BTreeMap<i32, RankOps>,
    pub(super) n_ranks: i32,
}

/// A rank that was watched for this much longer than an op took to come on another has not joined it. Wall
/// clocks of hosts differ less.
const LATE_NS: u64 = 1_000_000_000;

impl Collectives {
    pub(super) fn rank(&mut self, rank: i32, ended: Option<u64>, offset: u64) {
        let ops = self.ranks.entry(rank).or_default();
        (ops.ended, ops.offset) = (ended, offset);
    }

    pub(super) fn add(&mut self, line: &OpRow) {
        self.n_ranks = self.n_ranks.max(line.n_ranks);
        let Some(rank) = self.ranks.get_mut(&line.rank) else { return };
        rank.lost |= line.incomplete;
        if line.pattern.is_p2p() {
            return;
        }
        let call = Call::of(line);
        let number = *self.numbers.entry(call.describe()).or_insert_with(|| {
            self.calls.push(call);
            self.calls.len() - 1
        });
        rank.by_seq.entry(line.seq).or_insert((number, line.ts_ns));
    }

    pub(super) fn ranks(&self) -> Vec<i32> {
        self.ranks.keys().copied().collect()
    }

    /// Collectives of the rank that has most.
    pub(super) fn ops(&self) -> u64 {
        self.ranks.values().map(|rank| rank.by_seq.len() as u64).max().unwrap_or(0)
    }

    pub(super) fn check(&self, findings: &mut Vec<Finding>) {
        let all: BTreeSet<u64> = self.ranks.values().flat_map(|rank| rank.by_seq.keys().copied()).collect();
        let (mut differing, mut missing) = (Vec::new(), BTreeMap::new());
        for seq in all {
            self.same_call(seq, &mut differing);
            self.all_joined(seq, &mut missing);
        }
        let more = differing.len().saturating_sub(MAX_LISTED);
        findings.extend(differing.into_iter().take(MAX_LISTED));
        if more > 0 {
            let text = format!("{more} more collectives are not the same on all ranks");
            let kind = FindingKind::CollectiveMismatch;
            findings.push(Finding { kind, seq: None, ranks: Vec::new(), text });
        }
        findings.extend(missing.into_values());
    }

    /// Whether the ranks that ran it ran the same.
    fn same_call(&self, seq: u64, differing: &mut Vec<Finding>) {
        let mut by_call: BTreeMap<usize, Vec<i32>> = BTreeMap::new();
        for (rank, ops) in &self.ranks {
            if let Some((call, _)) = ops.by_seq.get(&seq) {
                by_call.entry(*call).or_default().push(*rank);
            }
        }
        // What most ranks ran is taken for right.
        let Some(usual) = by_call.iter().max_by_key(|(_, ranks)| ranks.len()).map(|(call, _)| *call) else {
            return;
        };
        for (call, ranks) in by_call.iter().filter(|(call, _)| **call != usual) {
            let (Some(call), Some(usual)) = (self.calls.get(*call), self.calls.get(usual)) else { continue };
            let Some(what) = call.difference(usual) else { continue };
            let kind = if what == "another operation" && self.is_elsewhere(seq, call, ranks) {
                FindingKind::OrderMismatch
            } else {
                FindingKind::CollectiveMismatch
            };
            let text = format!(
                "collective {}: {what} on {}: {}; the others run {}",
                seq / 2,
                name_ranks(ranks),
                call.describe(),
                usual.describe()
            );
            differing.push(Finding { kind, seq: Some(seq), ranks: ranks.clone(), text });
        }
    }

    /// Whether another rank runs this call just before or after: then the order differs.
    fn is_elsewhere(&self, seq: u64, call: &Call, except: &[i32]) -> bool {
        self.ranks.iter().filter(|(rank, _)| !except.contains(rank)).any(|(_, ops)| {
            [seq.wrapping_sub(2), seq + 2].iter().filter_map(|seq| ops.by_seq.get(seq)).any(|(other, _)| {
                self.calls.get(*other).is_some_and(|other| other.difference(call).is_none())
            })
        })
    }

    /// Whether the ranks that could be seen to run it did.
    fn all_joined(&self, seq: u64, missing: &mut BTreeMap<i32, Finding>) {
        let seen =
            self.ranks.values().filter_map(|ops| Some(ops.by_seq.get(&seq)?.1.saturating_add(ops.offset)));
        let Some(first_seen) = seen.min() else { return };
        for (rank, ops) in &self.ranks {
            if ops.by_seq.contains_key(&seq) || missing.contains_key(rank) {
                continue;
            }
            let last = ops.by_seq.keys().next_back();
            // Before its first it was not watched yet.
            if ops.by_seq.keys().next().is_some_and(|first| seq < *first) {
                continue;
            }
            let (kind, text) = if last.is_some_and(|last| seq < *last) {
                let lost = if ops.lost { "; records of its process were lost" } else { "" };
                (
                    FindingKind::MissingOp,
                    format!("rank {rank} has no collective {}, and later ones{lost}", seq / 2),
                )
            } else {
                let watched_until = ops.ended.map(|ended| ended.saturating_add(ops.offset));
                if watched_until.is_none_or(|until| until < first_seen.saturating_add(LATE_NS)) {
                    continue;
                }
                let done = last.map_or_else(|| "none".to_owned(), |last| (last / 2).to_string());
                (
                    FindingKind::MissingJoin,
                    format!("rank {rank} has not joined collective {} (its last: {done})", seq / 2),
                )
            };
            missing.insert(*rank, Finding { kind, seq: Some(seq), ranks: vec![*rank], text });
        }
    }
}

/// `rank 3`, `ranks 1, 2`.
pub(super) fn name_ranks(ranks: &[i32]) -> String {
    let list: Vec<String> = ranks.iter().map(i32::to_string).collect();
    format!("{} {}", if list.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
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
            collectives.rank(rank, Some(ended), 7);
        }
        for line in lines {
            collectives.add(line);
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
        // Attached later.
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
}
