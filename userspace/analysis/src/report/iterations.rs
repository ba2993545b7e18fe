//! Times of iterations, for some processes: an iteration is a part of a process's collectives that recurs.

use std::collections::BTreeMap;

use flow::{
    iterations::{Collective, IterationFinder, Period, marks},
    schema::{Op, RankKey},
    statistics::Quantiles,
};
use nccl_library::nccl::Name;

use super::data::ProcessIterationsData;

/// Most processes that are looked at: the first ones. Others of the job iterate with them.
const MAX_PROCESSES: usize = 32;

/// Number of collectives within which some part must recur.
const LOOKED_AT: usize = 8192;

/// Most points on the page, for each process.
const MAX_POINTS: usize = 2048;

#[derive(Debug, Default)]
pub(super) struct Iterations {
    /// Processes by host and number.
    processes: BTreeMap<(usize, u32), Process>,
    others: u64,
}

#[derive(Debug)]
struct Process {
    comm: usize,
    /// The rank in `comm`; the first, if the process has several ranks there.
    rank: i32,
    ranks: BTreeMap<usize, i32>,
    /// The last number of each communicator: an op comes once for each of its channels.
    last: BTreeMap<usize, u64>,
    finder: IterationFinder,
    period: Option<Period>,
    has_looked: bool,
    points: Vec<Point>,
    times: Quantiles,
    /// Number of iterations in a point; doubles when there are too many points.
    together: u64,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    at_ns: u64,
    n: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl Iterations {
    pub(super) fn add(&mut self, host: usize, comm: usize, key: RankKey, op: &Op, offset_ns: u64) {
        let row = &op.row;
        if row.pattern.is_p2p() {
            return;
        }
        let of = (host, key.pid);
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&of) {
            self.others += 1;
            return;
        }
        let process = self.processes.entry(of).or_insert_with(|| Process::new(comm, key.rank));
        if *process.ranks.entry(comm).or_insert(key.rank) != key.rank {
            return;
        }
        if process.last.get(&comm).is_some_and(|last| row.seq <= *last) {
            return;
        }
        process.last.insert(comm, row.seq);
        let name = row.called().map_or("", |name| name.as_str());
        let what = (name, row.count.or(row.bytes), row.dtype.as_ref().map(Name::as_str));
        let ts_ns = row.ts_ns.saturating_add(offset_ns);
        process.push(Collective::new(what, (key.hash, row.n_ranks), row.seq, ts_ns));
    }

    pub(super) fn has_others(&self) -> bool {
        self.others > 0
    }

    pub(super) fn data(&mut self, t0_ns: u64) -> Vec<ProcessIterationsData> {
        let us = |ns: u64| ns / 1000;
        let data = |((host, pid), process): (&(usize, u32), &mut Process)| {
            process.look();
            process.take_marks();
            let column = |value: fn(&Point) -> u64| process.points.iter().map(value).collect::<Vec<_>>();
            ProcessIterationsData {
                host: *host,
                pid: *pid,
                rank: process.rank,
                comm: process.comm,
                period: process.period.as_ref().map(Period::collectives),
                iterations: process.times.count(),
                p50_us: process.times.percentile(50).map(us),
                p99_us: process.times.percentile(99).map(us),
                at: column(|point| point.at_ns).into_iter().map(|at| us(at.saturating_sub(t0_ns))).collect(),
                n: column(|point| point.n),
                mean_us: column(|point| point.sum_ns.checked_div(point.n).unwrap_or(0) / 1000),
                max_us: column(|point| point.max_ns / 1000),
            }
        };
        self.processes.iter_mut().map(data).collect()
    }
}

impl Process {
    fn new(comm: usize, rank: i32) -> Self {
        Self {
            comm,
            rank,
            ranks: BTreeMap::new(),
            last: BTreeMap::new(),
            finder: IterationFinder::default(),
            period: None,
            has_looked: false,
            points: Vec::new(),
            times: Quantiles::default(),
            together: 1,
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
            self.times.add(ns);
            self.note(Point { at_ns: mark.first.ts_ns, n: 1, sum_ns: ns, max_ns: ns });
            passed = mark.at + length;
        }
        // Collectives that fit no iteration are not kept for ever.
        let all = self.finder.collectives().len();
        self.finder.forget(if passed == 0 && all >= LOOKED_AT { all - length } else { passed });
    }

    fn note(&mut self, point: Point) {
        match self.points.last_mut() {
            Some(last) if last.n < self.together => last.join(&point),
            _ => self.points.push(point),
        }
        if self.points.len() > MAX_POINTS {
            self.together *= 2;
            let mut joined: Vec<Point> = Vec::with_capacity(MAX_POINTS);
            for point in std::mem::take(&mut self.points) {
                match joined.last_mut() {
                    Some(last) if last.n < self.together => last.join(&point),
                    _ => joined.push(point),
                }
            }
            self.points = joined;
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
