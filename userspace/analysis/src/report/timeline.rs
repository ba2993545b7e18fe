//! Ops of each rank along time. When there are too many, neighbours are joined: the same number on all ranks,
//! so that a slice is the same collectives everywhere.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use serde::Serialize;

use super::{
    data::LongOp,
    open_ops::{OpTotals, join_waits},
};

/// Most slices of all lanes.
const MAX_SLICES: usize = 65_536;

/// Most ops that are listed by themselves.
pub(super) const MAX_LONGEST: usize = 100;

const US: u64 = 1000;

/// Consecutive ops of one rank, by their numbers.
#[derive(Clone, Debug)]
struct Slice {
    number: u64,
    begin_ns: u64,
    end_ns: u64,
    ops: u32,
    /// Number of these ops that were measured.
    measured: u32,
    /// Kind of the longest op. The line of code is that op's, too.
    kind: usize,
    code: Option<usize>,
    longest_ns: u64,
    waits_ns: [u64; 8],
}

impl Slice {
    fn of(op: &OpTotals, kind: usize, code: Option<usize>) -> Self {
        let (begin_ns, end_ns) = op.span_ns.unwrap_or((op.ts_ns, op.ts_ns));
        Self {
            number: op.seq >> 1,
            begin_ns,
            end_ns,
            ops: 1,
            measured: u32::from(op.span_ns.is_some()),
            kind,
            code,
            longest_ns: end_ns.saturating_sub(begin_ns),
            waits_ns: op.waits_ns,
        }
    }

    fn join(&mut self, other: &Self) {
        // Ops that were only planned have a moment and no length, and say nothing of when the others ran.
        match (self.measured > 0, other.measured > 0) {
            (true, false) => {}
            (false, true) => (self.begin_ns, self.end_ns) = (other.begin_ns, other.end_ns),
            _ => {
                self.begin_ns = self.begin_ns.min(other.begin_ns);
                self.end_ns = self.end_ns.max(other.end_ns);
            }
        }
        self.number = self.number.min(other.number);
        self.ops = self.ops.saturating_add(other.ops);
        self.measured = self.measured.saturating_add(other.measured);
        if other.longest_ns > self.longest_ns {
            (self.kind, self.code, self.longest_ns) = (other.kind, other.code, other.longest_ns);
        }
        join_waits(&mut self.waits_ns, &other.waits_ns);
    }
}

/// Communicator, whether it is sends and receives (which are numbered apart), and rank.
type Lane = (usize, bool, i32);

/// A long op: its length and begin. The shortest is on top of a heap.
type Long = (Reverse<u64>, u64, LongOp);

#[derive(Debug)]
pub(super) struct Timeline {
    lanes: BTreeMap<Lane, Vec<Slice>>,
    slices: usize,
    most: usize,
    /// Lowest bit by which numbers of different slices differ.
    shift: u32,
    longest: BinaryHeap<Long>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TimelineData {
    /// Most ops in a slice.
    pub(super) merge: u64,
    pub(super) lanes: Vec<LaneData>,
}

/// A lane as columns: a slice is an index into all of them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LaneData {
    pub(super) comm: usize,
    pub(super) rank: i32,
    pub(super) p2p: bool,
    /// Begins: the first, then the growth of each.
    pub(super) at: Vec<i64>,
    /// Durations; 0 where a slice was not measured.
    pub(super) us: Vec<u64>,
    /// Number (`seq` without its lowest bit) of the first op of a slice: the first, then the growth of each.
    pub(super) number: Vec<i64>,
    pub(super) kind: Vec<usize>,
    /// Number of ops of each slice; empty if each is one.
    pub(super) ops: Vec<u32>,
    /// Number of measured ops of each slice; empty if all were measured.
    pub(super) measured: Vec<u32>,
    pub(super) code: Vec<Option<usize>>,
    /// Microseconds of waits, all messages together: a column for each kind of wait that occurs, by its
    /// number.
    pub(super) waits: BTreeMap<usize, Vec<u64>>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self::with_most(MAX_SLICES)
    }
}

impl Timeline {
    pub(super) fn with_most(most: usize) -> Self {
        let (lanes, longest) = Default::default();
        Self { lanes, slices: 0, most, shift: 0, longest }
    }

    pub(super) fn add(&mut self, op: &OpTotals, kind: usize, code: Option<usize>) {
        let slice = Slice::of(op, kind, code);
        self.note_long(op, &slice);
        let key = (op.comm, op.is_p2p, op.rank);
        self.slices += usize::from(put(self.lanes.entry(key).or_default(), slice, self.shift));
        while self.slices > self.most && self.shift < 63 {
            self.shift += 1;
            let shift = self.shift;
            self.slices = 0;
            for lane in self.lanes.values_mut() {
                for slice in std::mem::take(lane) {
                    put(lane, slice, shift);
                }
                lane.shrink_to_fit();
                self.slices += lane.len();
            }
        }
    }

    fn note_long(&mut self, op: &OpTotals, slice: &Slice) {
        if op.span_ns.is_none() {
            return;
        }
        let ns = slice.longest_ns;
        let is_full = self.longest.len() >= MAX_LONGEST;
        if is_full && self.longest.peek().is_some_and(|shortest| shortest.0.0 >= ns) {
            return;
        }
        let long = LongOp {
            comm: op.comm,
            rank: op.rank,
            seq: op.seq,
            kind: slice.kind,
            at: 0,
            us: ns / US,
            waits: op.waits_ns.map(|ns| ns / US),
            code: slice.code,
        };
        self.longest.push((Reverse(ns), slice.begin_ns, long));
        if is_full {
            self.longest.pop();
        }
    }

    /// Returns the most ops in a slice.
    pub(super) fn merge(&self) -> u64 {
        1 << self.shift
    }

    /// Returns the first and the last moment.
    pub(super) fn span_ns(&self) -> Option<(u64, u64)> {
        let slices = || self.lanes.values().flatten();
        Some((slices().map(|slice| slice.begin_ns).min()?, slices().map(|slice| slice.end_ns).max()?))
    }

    /// Returns the longest ops, the longest first. `codes` maps numbers of stacks to lines of code.
    pub(super) fn longest(&mut self, t0_ns: u64, codes: &[usize]) -> Vec<LongOp> {
        let longest = std::mem::take(&mut self.longest).into_sorted_vec();
        let op = |(_, at_ns, op): Long| LongOp {
            at: at_ns.saturating_sub(t0_ns) / US,
            code: op.code.and_then(|code| codes.get(code).copied()),
            ..op
        };
        longest.into_iter().map(op).collect()
    }

    /// Returns the columns of all lanes. `codes` maps numbers of stacks to lines of code.
    pub(super) fn data(&self, t0_ns: u64, codes: &[usize]) -> TimelineData {
        let lanes = self.lanes.iter().map(|(lane, slices)| lane_data(*lane, slices, t0_ns, codes)).collect();
        TimelineData { merge: self.merge(), lanes }
    }
}

/// Adds a slice, or joins it with the last one. Returns whether it was added.
fn put(slices: &mut Vec<Slice>, slice: Slice, shift: u32) -> bool {
    match slices.last_mut() {
        Some(last) if shift > 0 && last.number >> shift == slice.number >> shift => {
            last.join(&slice);
            false
        }
        _ => {
            slices.push(slice);
            true
        }
    }
}

fn lane_data((comm, is_p2p, rank): Lane, slices: &[Slice], t0_ns: u64, codes: &[usize]) -> LaneData {
    let mut slices: Vec<&Slice> = slices.iter().collect();
    slices.sort_by_key(|slice| (slice.begin_ns, slice.number));
    let column = |value: &dyn Fn(&Slice) -> u64| slices.iter().map(|slice| value(slice)).collect::<Vec<_>>();
    let counts = |value: &dyn Fn(&Slice) -> u32| slices.iter().map(|slice| value(slice)).collect::<Vec<_>>();
    let at = column(&|slice| slice.begin_ns.saturating_sub(t0_ns) / US);
    // This is the distance between the two moments as they are shown.
    let until = column(&|slice| slice.end_ns.saturating_sub(t0_ns) / US);
    let us = until.iter().zip(&at).map(|(until, at)| until.saturating_sub(*at)).collect();
    let is_single = slices.iter().all(|slice| slice.ops == 1);
    let is_measured = slices.iter().all(|slice| slice.measured == slice.ops);
    let has_code = slices.iter().any(|slice| slice.code.is_some());
    let code = |slice: &&Slice| slice.code.and_then(|code| codes.get(code).copied());
    let waits = (0..8).filter_map(|wait| {
        let of = |slice: &Slice| slice.waits_ns.get(wait).map_or(0, |ns| ns / US);
        slices.iter().any(|slice| of(slice) > 0).then(|| (wait, column(&of)))
    });
    LaneData {
        comm,
        rank,
        p2p: is_p2p,
        at: growth(&at),
        us,
        number: growth(&column(&|slice| slice.number)),
        kind: slices.iter().map(|slice| slice.kind).collect(),
        ops: if is_single { Vec::new() } else { counts(&|slice| slice.ops) },
        measured: if is_measured { Vec::new() } else { counts(&|slice| slice.measured) },
        code: if has_code { slices.iter().map(code).collect() } else { Vec::new() },
        waits: waits.collect(),
    }
}

/// Returns the first value, and then the growth of each.
fn growth(values: &[u64]) -> Vec<i64> {
    let mut before = 0u64;
    let step = |value: &u64| {
        let step = value.wrapping_sub(before).cast_signed();
        before = *value;
        step
    };
    values.iter().map(step).collect()
}
