//! Ranks of processes in their jobs.

use flow::{
    schema::{ApiCall, Op},
    session::TargetReport,
};
use std::collections::HashMap;

use anyhow::Result;

use super::source::Source;
use recording::sinks::Sink;

/// A rank in a job, and how it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobRank {
    pub(super) rank: i32,
    /// Set if it is the rank in the largest communicator of the process: usually the job's, but nobody said
    /// so.
    pub(super) is_derived: bool,
}

/// Most processes of which the largest communicator is kept.
const MAX_PROCESSES: usize = 65_536;

/// Returns job ranks by process ID, as far as they are known.
pub(super) fn job_ranks(source: &Source) -> Result<HashMap<u32, JobRank>> {
    let mut largest = Largest::default();
    for rank in &source.session().communicators {
        largest.note(rank.pid, rank.n_ranks, rank.rank);
    }
    // A recording that was cut off has only the report of its beginning.
    if largest.0.is_empty() {
        (largest, _) = source.read_all(largest, &mut |_| ())?;
    }
    let derived = largest.0.into_iter().map(|(pid, (_, rank))| (pid, JobRank { rank, is_derived: true }));
    let mut ranks: HashMap<u32, JobRank> = derived.collect();
    ranks.extend(source.session().targets.iter().filter_map(told));
    Ok(ranks)
}

/// Returns the rank of a process in a report, and whether it was derived there.
fn told(target: &TargetReport) -> Option<(u32, JobRank)> {
    let job = target.job.as_ref()?;
    let rank = i32::try_from(job.rank?).ok()?;
    let is_derived = job.rank_source.is_some_and(|source| source.name() == "derived");
    Some((target.pid, JobRank { rank, is_derived }))
}

/// Size of the largest communicator of each process, and its rank there; of equal ones, the first.
#[derive(Debug, Default)]
struct Largest(HashMap<u32, (i32, i32)>);

impl Largest {
    fn note(&mut self, pid: u32, n_ranks: i32, rank: i32) {
        if self.0.len() >= MAX_PROCESSES && !self.0.contains_key(&pid) {
            return;
        }
        let largest = self.0.entry(pid).or_insert((n_ranks, rank));
        if n_ranks > largest.0 {
            *largest = (n_ranks, rank);
        }
    }
}

impl Sink for Largest {
    fn wants_messages(&self, _op: &Op) -> bool {
        false
    }

    fn op(&mut self, op: &Op) {
        self.note(op.row.pid, op.row.n_ranks, op.row.rank);
    }

    fn call(&mut self, call: &ApiCall) {
        if let (Some(rank), Some(n_ranks)) = (call.rank, call.row.n_ranks) {
            self.note(call.row.pid, n_ranks, rank.rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_communicator_counts_and_of_equal_ones_the_first() {
        let mut largest = Largest::default();
        for (pid, n_ranks, rank) in [(1, 2, 1), (1, 8, 5), (1, 8, 3), (1, 4, 2), (2, 1, 0)] {
            largest.note(pid, n_ranks, rank);
        }
        assert_eq!(largest.0, HashMap::from([(1, (8, 5)), (2, (1, 0))]));
    }

    #[test]
    fn what_a_report_says_is_taken_if_it_is_a_rank() {
        let told = |text: &str| told(&serde_json::from_str(text).unwrap());
        let rank = |rank, is_derived| Some((7, JobRank { rank, is_derived }));
        assert_eq!(told(r#"{"pid": 7, "job": {"rank": 12, "rank_source": "RANK"}}"#), rank(12, false));
        assert_eq!(told(r#"{"pid": 7, "job": {"rank": 3, "rank_source": "derived"}}"#), rank(3, true));
        assert_eq!(told(r#"{"pid": 7, "job": {"rank": -3}}"#), None);
        assert_eq!(told(r#"{"pid": 7, "job": null}"#), None);
        assert_eq!(told(r#"{"pid": 7}"#), None);
    }
}
