//! Times of iterations on the page.

use flow::iterations::Period;

use super::data::ProcessIterationsData;
use crate::iterations::{Iterations, Point};

pub(super) fn data(iterations: &mut Iterations, t0_ns: u64) -> Vec<ProcessIterationsData> {
    let us = |ns: u64| ns / 1000;
    let processes = iterations.processes().map(|((host, pid), process)| {
        let column = |value: fn(&Point) -> u64| process.points.iter().map(value).collect::<Vec<_>>();
        ProcessIterationsData {
            host: *host,
            pid: *pid,
            rank: process.rank,
            comm: process.comm,
            period: process.period.as_ref().map(Period::collectives),
            iterations: process.times.count,
            p50_us: process.times.percentile(50).map(us),
            p99_us: process.times.percentile(99).map(us),
            at: column(|point| point.at_ns).into_iter().map(|at| us(at.saturating_sub(t0_ns))).collect(),
            n: column(|point| point.n),
            mean_us: column(|point| point.sum_ns.checked_div(point.n).unwrap_or(0) / 1000),
            max_us: column(|point| point.max_ns / 1000),
        }
    });
    processes.collect()
}
