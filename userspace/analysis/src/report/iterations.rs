//! Times of iterations on the page.

use flow::iterations::Period;

use super::data::{ProcessIterationsData, SeriesData};
use crate::iterations::{Iterations, Point, Points};

pub(super) fn data(iterations: &mut Iterations, t0_ns: u64) -> Vec<ProcessIterationsData> {
    let us = |ns: u64| ns / 1000;
    let processes = iterations.processes().map(|((host, pid), process)| ProcessIterationsData {
        host: *host,
        pid: *pid,
        rank: process.rank,
        comm: process.comm,
        period: process.period.as_ref().map(Period::collectives),
        iterations: process.times.count,
        p50_us: process.times.percentile(50).map(us),
        p99_us: process.times.percentile(99).map(us),
        series: SeriesData::of(&process.points, t0_ns),
    });
    processes.collect()
}

impl SeriesData {
    fn of(points: &Points, t0_ns: u64) -> Self {
        let column = |value: fn(&Point) -> u64| points.points.iter().map(value);
        Self {
            at: column(|point| point.at_ns).map(|at| at.saturating_sub(t0_ns) / 1000).collect(),
            n: column(|point| point.n).collect(),
            mean_us: points.points.iter().map(|point| point.sum_ns / point.n.max(1) / 1000).collect(),
            max_us: column(|point| point.max_ns / 1000).collect(),
        }
    }

    /// Makes the series of iterations by their begin and their length.
    pub(super) fn of_lengths(lengths: &[(u64, u64)], t0_ns: u64) -> Self {
        let mut points = Points::default();
        for (at_ns, ns) in lengths {
            points.note(*at_ns, *ns);
        }
        Self::of(&points, t0_ns)
    }
}
