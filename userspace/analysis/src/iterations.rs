//! Times of iterations, for some processes: an iteration is a part of a process's collectives that recurs.

use std::collections::BTreeMap;

use flow::{
    iterations::{Collective, IterationFinder, Period, marks},
    schema::{Op, RankKey},
    statistics::{Durations as _, Quantiles},
};
use nccl_library::nccl::Name;

use crate::in_order::{Firsts, MOST_LATE};

/// Most processes that are looked at: the first ones. Others of the job iterate with them.
const MAX_PROCESSES: usize = 32;

/// Number of collectives within which some part must recur.
const LOOKED_AT: usize = 8192;

/// Most points on the page, for each process.
const MAX_POINTS: usize = 2048;

#[derive(Debug, Default)]
pub(crate) struct Iterations {
    /// Processes by host and number.
    processes: BTreeMap<(usize, u32), Process>,
    /// Number of ops of others.
    pub(crate) others: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) comm: usize,
    /// The rank in `comm`; the first, if the process has several ranks there.
    pub(crate) rank: i32,
    ranks: BTreeMap<usize, i32>,
    firsts: BTreeMap<usize, Firsts>,
    /// Collectives before which others may come, by time, communicator and number.
    waiting: BTreeMap<(u64, usize, u64), Collective>,
    finder: IterationFinder,
    pub(crate) period: Option<Period>,
    has_looked: bool,
    pub(crate) points: Points,
    pub(crate) times: Quantiles,
}

/// Iterations along time.
#[derive(Debug)]
pub(crate) struct Points {
    pub(crate) points: Vec<Point>,
    /// Number of iterations in a point; doubles when there are too many points.
    together: u64,
}

impl Default for Points {
    fn default() -> Self {
        Self { points: Vec::new(), together: 1 }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) at_ns: u64,
    pub(crate) n: u64,
    pub(crate) sum_ns: u64,
    pub(crate) max_ns: u64,
}

impl Iterations {
    pub(crate) fn add(&mut self, host: usize, comm: usize, key: RankKey, op: &Op, offset_ns: u64) {
        let row = &op.row;
        // A replay that the launch of its graph tells has the number of the captured op.
        if row.pattern.is_numbered_apart() || row.graph_launch.is_some() {
            return;
        }
        let of = (host, key.pid);
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&of) {
            self.others += 1;
            return;
        }
        let process = self.processes.entry(of).or_insert_with(|| Process {
            comm,
            rank: key.rank,
            ..Process::default()
        });
        if *process.ranks.entry(comm).or_insert(key.rank) != key.rank {
            return;
        }
        if !process.firsts.entry(comm).or_default().is_first(row.seq / 2) {
            return;
        }
        let name = row.called().map_or("", |name| name.as_str());
        let what = (name, row.count.or(row.bytes), row.dtype.as_ref().map(Name::as_str));
        let ts_ns = row.ts_ns.saturating_add(offset_ns);
        let collective = Collective::new(what, (key.hash, row.n_ranks), row.seq, ts_ns);
        process.waiting.insert((ts_ns, comm, row.seq), collective);
        process.push_waiting(MOST_LATE);
    }

    /// Completes the iterations that have come. Returns the processes by host and number.
    pub(crate) fn processes(&mut self) -> impl Iterator<Item = (&(usize, u32), &Process)> {
        for process in self.processes.values_mut() {
            process.push_waiting(0);
            process.look();
            process.take_marks();
        }
        self.processes.iter()
    }
}

impl Process {
    /// Returns the mean length of its iterations.
    pub(crate) fn mean_ns(&self) -> Option<u64> {
        let points = &self.points.points;
        let sum_ns = points.iter().map(|point| point.sum_ns).fold(0, u64::saturating_add);
        sum_ns.checked_div(points.iter().map(|point| point.n).sum())
    }

    /// Takes the earliest of the collectives that wait, until no more than so many do.
    fn push_waiting(&mut self, most: usize) {
        while self.waiting.len() > most {
            let Some((_, collective)) = self.waiting.pop_first() else { return };
            self.push(collective);
        }
    }

    fn push(&mut self, collective: Collective) {
        if self.has_looked && self.period.is_none() {
            return;
        }
        self.finder.push(collective);
        if self.finder.collectives().len() >= LOOKED_AT {
            self.look();
            self.take_marks();
        }
    }

    fn look(&mut self) {
        if !self.has_looked {
            self.has_looked = true;
            self.period = self.finder.find(true);
        }
    }

    /// Takes the iterations that have come. Each lasts until the collective after it.
    fn take_marks(&mut self) {
        let Some(period) = &self.period else { return };
        let marks = marks(self.finder.collectives(), period);
        let length = period.collectives();
        let mut passed = 0;
        for mark in marks {
            let Some(next_ns) = mark.next_ns else {
                passed = mark.at;
                break;
            };
            let ns = next_ns.saturating_sub(mark.first.ts_ns);
            self.times.note(ns);
            self.points.note(mark.first.ts_ns, ns);
            passed = mark.at + length;
        }
        // Collectives that fit no iteration are not kept for ever.
        let all = self.finder.collectives().len();
        self.finder.forget(if passed == 0 && all >= LOOKED_AT { all - length } else { passed });
    }
}

impl Points {
    /// Adds an iteration by its begin and its length.
    pub(crate) fn note(&mut self, at_ns: u64, ns: u64) {
        self.put(Point { at_ns, n: 1, sum_ns: ns, max_ns: ns });
        if self.points.len() > MAX_POINTS {
            self.together *= 2;
            for point in std::mem::take(&mut self.points) {
                self.put(point);
            }
        }
    }

    /// Adds a point, or joins it with the last one.
    fn put(&mut self, point: Point) {
        match self.points.last_mut() {
            Some(last) if last.n < self.together => last.join(&point),
            _ => self.points.push(point),
        }
    }
}

impl Point {
    fn join(&mut self, other: &Self) {
        self.n += other.n;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

#[cfg(test)]
mod tests {
    use flow::{made::rows::op_row, schema::OpRow};

    use super::*;

    /// An iteration has two collectives; every tenth is measured, and comes after later ones.
    #[test]
    fn iterations_are_found_also_where_some_collectives_come_late() {
        let mut iterations = Iterations::default();
        let key = RankKey { hash: Some(7), instance: 0, rank: 0, pid: 1 };
        let mut order: Vec<u64> = (0..400).collect();
        order.chunks_mut(10).for_each(|chunk| chunk.rotate_left(1));
        for number in order {
            let row = OpRow { seq: number * 2, ts_ns: number * 1000, count: Some(number % 2), ..op_row() };
            iterations.add(0, 0, key, &Op { rank: key, row, call_bytes: None }, 0);
        }
        let (_, process) = iterations.processes().next().unwrap();
        assert_eq!(process.period.as_ref().map(Period::collectives), Some(2));
        assert_eq!((process.mean_ns(), process.times.count), (Some(2000), 199));
    }
}
