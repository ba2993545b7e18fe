//! Ranks of processes in their jobs.

use flow::{
    schema::{ApiCall, CommunicatorReport, Op, RankKey, comm_hash_of_name},
    session::TargetReport,
};
use std::collections::{HashMap, HashSet};

use anyhow::Result;

use recording::sinks::Sink;

use crate::sources::Source;

/// A rank in a job, and how it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobRank {
    pub(super) rank: i32,
    /// Set if it is the rank in the largest communicator of the process: usually the job's, but nobody said
    /// so.
    pub(super) is_derived: bool,
}

/// Most ranks of communicators that are kept.
pub(super) const MAX_MEMBERS: usize = 1 << 20;

/// Returns the ranks of communicators that a recording has, with the sizes of their communicators as far as
/// they are known, in the order in which they are listed or come.
pub(super) fn members(source: &Source) -> Result<Vec<(RankKey, Option<i32>)>> {
    let reported = &source.session().communicators;
    if reported.is_empty() {
        // A recording that was cut off has only the report of its beginning.
        return Ok(source.read_all(Seen::default(), &mut |_| ())?.0.members);
    }
    let member = |facts: &CommunicatorReport| {
        // The first one with its hash and number: a report's folder tells others apart.
        let hash = comm_hash_of_name(&facts.comm_hash);
        (RankKey { hash, instance: 0, rank: facts.rank, pid: facts.pid }, Some(facts.n_ranks))
    };
    Ok(reported.iter().map(member).collect())
}

/// Returns job ranks by process ID, as far as they are known: what the report says, or else the rank in the
/// largest communicator; of equal ones, the first.
pub(super) fn job_ranks(source: &Source, members: &[(RankKey, Option<i32>)]) -> HashMap<u32, JobRank> {
    let mut largest: HashMap<u32, (i32, i32)> = HashMap::new();
    for (RankKey { rank, pid, .. }, n_ranks) in members {
        let Some(n_ranks) = *n_ranks else { continue };
        let of_process = largest.entry(*pid).or_insert((n_ranks, *rank));
        if n_ranks > of_process.0 {
            *of_process = (n_ranks, *rank);
        }
    }
    let derived = largest.into_iter().map(|(pid, (_, rank))| (pid, JobRank { rank, is_derived: true }));
    derived.chain(source.session().targets.iter().filter_map(told)).collect()
}

/// Returns the rank of a process in a report, and whether it was derived there.
fn told(target: &TargetReport) -> Option<(u32, JobRank)> {
    let job = target.job.as_ref()?;
    let rank = i32::try_from(job.rank?).ok()?;
    let is_derived = job.rank_source.is_some_and(|source| source.name() == "derived");
    Some((target.pid, JobRank { rank, is_derived }))
}

/// Ranks that have rows, in the order in which they come.
#[derive(Debug, Default)]
struct Seen {
    known: HashSet<(RankKey, Option<i32>)>,
    members: Vec<(RankKey, Option<i32>)>,
}

impl Seen {
    fn note(&mut self, rank: RankKey, n_ranks: Option<i32>) {
        if self.members.len() < MAX_MEMBERS && self.known.insert((rank, n_ranks)) {
            self.members.push((rank, n_ranks));
        }
    }
}

impl Sink for Seen {
    fn wants_messages(&self, _op: &Op) -> bool {
        false
    }

    fn op(&mut self, op: &Op) {
        self.note(op.rank, Some(op.row.n_ranks));
    }

    fn call(&mut self, call: &ApiCall) {
        call.rank.into_iter().for_each(|rank| self.note(rank, call.row.n_ranks));
    }
}

#[cfg(test)]
mod tests {
    use flow::session::SessionReport;

    use super::*;

    #[test]
    fn the_largest_communicator_counts_and_of_equal_ones_the_first() {
        let source = Source {
            path: "flows".into(),
            session: SessionReport::parse("{}"),
            span_ns: None,
            bytes: 0,
            is_over: true,
            clock: None,
        };
        let members = [(1, Some(2), 1), (1, Some(8), 5), (1, Some(8), 3), (1, None, 2), (2, Some(1), 0)];
        let members = members.map(|(pid, n_ranks, rank)| {
            (RankKey { hash: Some(u64::from(pid)), instance: 0, rank, pid }, n_ranks)
        });
        let derived = |rank| JobRank { rank, is_derived: true };
        assert_eq!(job_ranks(&source, &members), HashMap::from([(1, derived(5)), (2, derived(0))]));
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
