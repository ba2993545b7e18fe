//! Finds the rank in the job of each rank of a communicator.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Context as _, Result, bail};
use flow::schema::RankKey;

use super::{
    job_ranks::{JobRank, MAX_MEMBERS, job_ranks, members},
    view::listed,
};
use crate::sources::{Source, Who};

/// A rank of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) host: String,
    pub(super) pid: u32,
    /// Rank in the job; `None` if no source states it.
    pub(super) job_rank: Option<JobRank>,
}

#[derive(Debug, Default)]
pub(super) struct Job {
    /// Members by `commHash` and rank.
    members: HashMap<u64, BTreeMap<i32, Member>>,
    count: usize,
}

impl Job {
    /// Finds the ranks that recordings have.
    pub(super) fn of(sources: &[Source]) -> Result<Self> {
        let mut job = Self::default();
        for source in sources {
            job.add(source).with_context(|| format!("in `{}`", source.path.display()))?;
        }
        Ok(job)
    }

    fn add(&mut self, source: &Source) -> Result<()> {
        let who = Who::of(source.session());
        let mut members = members(source)?;
        let job_ranks = job_ranks(source, &members);
        members.sort_unstable();
        for (key, _) in members {
            let said = who.rank(key).and_then(|facts| i32::try_from(facts.job_rank?).ok());
            let said = said.map(|rank| JobRank { rank, is_derived: false });
            let job_rank = said.or_else(|| job_ranks.get(&key.pid).copied());
            self.note(key, Member { host: source.host().to_owned(), pid: key.pid, job_rank });
        }
        Ok(())
    }

    fn note(&mut self, key: RankKey, member: Member) {
        let Some(hash) = key.hash else { return };
        let ranks = self.members.entry(hash).or_default();
        if self.count < MAX_MEMBERS && !ranks.contains_key(&key.rank) {
            self.count += 1;
            ranks.insert(key.rank, member);
        }
    }

    /// Returns the job's ranks of a communicator, in the order of its own ranks, or why they are not known.
    pub(super) fn ranks_of(&self, hash: u64, n_ranks: i32) -> Result<Vec<i32>, String> {
        let known = self.members.get(&hash);
        let member = |rank| known.and_then(|ranks| ranks.get(&rank));
        let missing: Vec<i32> = (0..n_ranks).filter(|rank| member(*rank).is_none()).take(9).collect();
        if !missing.is_empty() {
            return Err(format!(
                "rank {} of communicator 0x{hash:016x} is in none of the recordings, and Chakra's nodes name ranks by their number in the job: give the recordings of all hosts",
                listed(missing.iter(), 8)
            ));
        }
        let mut ranks = Vec::new();
        for rank in 0..n_ranks {
            let Some(Member { host, pid, job_rank }) = member(rank) else { continue };
            let Some(job_rank) = job_rank else {
                return Err(format!(
                    "nothing says which rank of the job process {pid} on {host} is: no environment, no rank map (`record --rank-map`)"
                ));
            };
            ranks.push(job_rank.rank);
        }
        let mut seen = HashSet::new();
        if let Some(twice) = ranks.iter().find(|rank| !seen.insert(**rank)) {
            return Err(format!(
                "two ranks of communicator 0x{hash:016x} are rank {twice} of the job, as far as it is known: where a process has several GPUs, say its ranks with `record --rank-map`"
            ));
        }
        Ok(ranks)
    }

    /// Returns the job's ranks that are known of a communicator.
    pub(super) fn known(&self, hash: u64) -> BTreeMap<u32, JobRank> {
        let members = self.members.get(&hash).into_iter().flatten();
        members.filter_map(|(rank, member)| Some((u32::try_from(*rank).ok()?, member.job_rank?))).collect()
    }
}

/// Fails if a rank of the job is of another process than before.
pub(super) fn check_owner(rank: i64, before: &(String, u32), owner: &(String, u32)) -> Result<()> {
    if before != owner {
        bail!(
            "processes {} on {} and {} on {} are both rank {rank} of their job: choose one job with --job or --pid",
            before.1,
            before.0,
            owner.1,
            owner.0
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(pid: u32, rank: Option<i32>) -> Member {
        let job_rank = rank.map(|rank| JobRank { rank, is_derived: false });
        Member { host: "here".to_owned(), pid, job_rank }
    }

    fn job(ranks: &[(i32, u32, Option<i32>)]) -> Job {
        let mut job = Job::default();
        for (rank, pid, of_job) in ranks {
            let key = RankKey { hash: Some(7), instance: 0, rank: *rank, pid: *pid };
            job.note(key, member(*pid, *of_job));
        }
        job
    }

    #[test]
    fn ranks_are_those_of_the_job_or_it_is_said_why_not() {
        let known = job(&[(0, 10, Some(4)), (1, 11, Some(2))]);
        assert_eq!(known.ranks_of(7, 2), Ok(vec![4, 2]));
        assert!(known.ranks_of(7, 3).unwrap_err().contains("rank 2 of communicator"));
        assert!(known.ranks_of(8, 1).unwrap_err().contains("none of the recordings"));
        let unknown = job(&[(0, 10, None)]);
        assert!(unknown.ranks_of(7, 1).unwrap_err().contains("--rank-map"));
        let same = job(&[(0, 10, Some(3)), (1, 10, Some(3))]);
        assert!(same.ranks_of(7, 2).unwrap_err().contains("rank 3 of the job"));
    }
}
