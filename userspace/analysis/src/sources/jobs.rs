//! The jobs that recordings have: processes with one name of a job, in one pod, or with a communicator in
//! common, on whatever host.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use flow::{
    identity::{JobMember, job_names},
    schema::comm_hash_of_name,
    text::joined,
};

use super::source::Source;

/// Longest name of a job's folder.
const MAX_NAME: usize = 64;

/// Jobs by source and process. Processes without a communicator are of none: they may have NCCL and not use
/// it.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    names: BTreeMap<(usize, u32), String>,
    /// Ranks of each job: in the job, or in a communicator where nobody knows that.
    ranks: BTreeMap<String, BTreeSet<i64>>,
}

impl Jobs {
    /// Fails where none of the jobs that were asked for is there, and says which are.
    pub(crate) fn ensure_has(&self, asked: &[String]) -> Result<()> {
        let known = self.names();
        let is_known = |job: &String| known.contains(job.as_str());
        ensure!(
            asked.is_empty() || asked.iter().any(is_known),
            "nothing of job {} was recorded; jobs here: {}",
            asked.join(", "),
            joined(&known, ", ")
        );
        Ok(())
    }

    pub(crate) fn of(sources: &[Source]) -> Self {
        let mut members: BTreeMap<(usize, u32), JobMember<(usize, u32)>> = BTreeMap::new();
        let mut ranks: Vec<((usize, u32), i64)> = Vec::new();
        for (at, source) in sources.iter().enumerate() {
            let session = source.session();
            for row in &session.communicators {
                if comm_hash_of_name(&row.comm_hash).is_none() {
                    continue;
                }
                let target = session.targets.iter().find(|target| target.pid == row.pid);
                let of = (at, row.pid);
                let member = members.entry(of).or_insert_with(|| {
                    let name = target.map_or("", |target| target.name.as_str());
                    let whose = target.and_then(|target| target.whose.as_ref());
                    let member = JobMember::new(of, row.pid, name, whose);
                    let said = target.and_then(|target| target.job.as_ref()?.name.clone());
                    JobMember { named: said.or(member.named.clone()), ..member }
                });
                member.communicators.push(row.comm_hash.clone());
                ranks.push((of, row.job_rank.map_or(row.rank.into(), i64::from)));
            }
        }
        let names = job_names(&members.into_values().collect::<Vec<_>>());
        let mut all = Self { names, ranks: BTreeMap::new() };
        for (of, rank) in ranks {
            if let Some(name) = all.names.get(&of) {
                all.ranks.entry(name.clone()).or_default().insert(rank);
            }
        }
        all
    }

    /// Returns the job of a process of a source.
    pub(crate) fn name(&self, source: usize, pid: u32) -> Option<&str> {
        self.names.get(&(source, pid)).map(String::as_str)
    }

    /// Returns the jobs of the processes of a source.
    pub(crate) fn of_source(&self, source: usize) -> BTreeMap<u32, String> {
        let of_source = self.names.range((source, 0)..=(source, u32::MAX));
        of_source.map(|((_, pid), name)| (*pid, name.clone())).collect()
    }

    /// Returns the names of all jobs.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        self.names.values().map(String::as_str).collect()
    }

    /// Returns the names of the jobs, if files that are named by the job's ranks cannot be of all of them:
    /// two have the same rank.
    pub(crate) fn apart(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let are_apart = self.ranks.values().flatten().all(|rank| seen.insert(*rank));
        if are_apart { Vec::new() } else { self.ranks.keys().cloned().collect() }
    }
}

/// Returns the name of a job's folder.
pub(crate) fn folder(job: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = job.chars().map(|c| if is_plain(c) { c } else { '_' }).take(MAX_NAME).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "job".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(ranks: &[(&str, &[i64])]) -> Jobs {
        let of = |(name, ranks): &(&str, &[i64])| ((*name).to_owned(), ranks.iter().copied().collect());
        Jobs { names: BTreeMap::new(), ranks: ranks.iter().map(of).collect() }
    }

    #[test]
    fn jobs_with_the_same_ranks_are_apart() {
        assert!(jobs(&[("77", &[0, 1])]).apart().is_empty());
        assert!(jobs(&[("77", &[0, 1]), ("78", &[2, 3])]).apart().is_empty(), "groups of one job");
        assert_eq!(jobs(&[("77", &[0, 1]), ("78", &[1])]).apart(), ["77", "78"]);
    }

    #[test]
    fn a_folder_has_a_plain_name() {
        assert_eq!(folder("77"), "77");
        assert_eq!(folder("../a b"), "_a_b");
        assert_eq!(folder("…"), "_");
        assert_eq!(folder(".."), "job");
        assert_eq!(folder(&"x".repeat(100)).len(), MAX_NAME);
    }
}
