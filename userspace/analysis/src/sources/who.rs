//! Facts about ranks in a recording's report: names, GPUs, nodes, ranks in the job.

use std::collections::HashMap;

use flow::{
    schema::{CommunicatorReport, RankKey, comm_hash_name},
    session::{SessionReport, TargetReport},
};

/// The ranks of one recording.
#[derive(Debug, Default)]
pub(crate) struct Who {
    by_process: HashMap<u32, Vec<CommunicatorReport>>,
    processes: HashMap<u32, TargetReport>,
}

impl Who {
    pub(crate) fn of(session: &SessionReport) -> Self {
        let mut who = Self::default();
        for facts in &session.communicators {
            who.by_process.entry(facts.pid).or_default().push(facts.clone());
        }
        who.processes.extend(session.targets.iter().map(|target| (target.pid, target.clone())));
        who
    }

    /// Returns the facts about a rank. Where rows of a rank are put beside those of another recording, its
    /// number among the communicators of one hash is not that of the report.
    pub(crate) fn rank(&self, key: RankKey) -> Option<&CommunicatorReport> {
        let hash = comm_hash_name(key.hash);
        let same = |facts: &&CommunicatorReport| facts.rank == key.rank && facts.comm_hash == hash;
        let known = || self.by_process.get(&key.pid).into_iter().flatten().filter(same);
        known().find(|facts| facts.folder == key.comm_name()).or_else(|| known().next())
    }

    /// Returns all ranks of a process.
    pub(crate) fn ranks_of(&self, pid: u32) -> &[CommunicatorReport] {
        self.by_process.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// Returns the command that a process runs.
    pub(crate) fn command(&self, pid: u32) -> Option<&str> {
        self.processes.get(&pid).map(|target| target.name.as_str()).filter(|name| !name.is_empty())
    }

    /// Returns the ranks in the job that a process has, sorted; several where it has several GPUs.
    pub(crate) fn job_ranks(&self, pid: u32) -> Vec<u32> {
        let mut ranks: Vec<u32> = self.ranks_of(pid).iter().filter_map(|facts| facts.job_rank).collect();
        ranks.extend(self.processes.get(&pid).and_then(|target| target.job.as_ref()?.rank));
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_found_by_process_hash_and_rank() {
        let who = Who::of(&SessionReport::parse(
            r#"{"targets": [{"pid": 7, "name": "python3", "job": {"rank": 4}}, {"pid": 8, "job": null}, {}],
            "communicators": [
              {"commHash": "0x000000000000000a", "folder": "0x000000000000000a", "rank": 1, "nRanks": 8, "pid": 7,
               "commName": "dp", "jobRank": 5},
              {"commHash": "0x000000000000000a", "folder": "0x000000000000000a-1", "rank": 1, "nRanks": 8, "pid": 7},
              {"rank": "nonsense"}]}"#,
        ));
        let key = |hash, instance, rank, pid| RankKey { hash: Some(hash), instance, rank, pid };
        assert_eq!(who.rank(key(10, 0, 1, 7)).unwrap().comm_name.as_deref(), Some("dp"));
        assert_eq!(who.rank(key(10, 1, 1, 7)).unwrap().comm_name, None);
        // A rank that was put beside another recording's.
        assert_eq!(who.rank(key(10, 5, 1, 7)).unwrap().comm_name.as_deref(), Some("dp"));
        assert!(who.rank(key(10, 0, 2, 7)).is_none() && who.rank(key(10, 0, 1, 8)).is_none());
        assert_eq!(who.job_ranks(7), [4, 5]);
        assert_eq!((who.command(7), who.command(8)), (Some("python3"), None));
        assert!(Who::of(&SessionReport::parse("no report")).ranks_of(7).is_empty());
    }
}
