//! Facts about ranks in a recording's report: names, GPUs, nodes, ranks in the job.

use std::collections::HashMap;

use flow::schema::{RankKey, comm_hash_name, comm_hash_of_name};
use serde::Deserialize;
use serde_json::Value;

use super::source::Source;

/// Most ranks of one recording that are kept.
const MAX_RANKS: usize = 65_536;

/// A rank of a communicator. Unknown values are `None`: another version may have written the report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RankFacts {
    pub(super) comm_hash: String,
    pub(super) folder: String,
    pub(super) rank: i32,
    pub(super) n_ranks: i32,
    pub(super) pid: u32,
    pub(super) comm_name: Option<String>,
    pub(super) n_nodes: Option<u32>,
    pub(super) cuda_dev: Option<u32>,
    pub(super) bus_id: Option<String>,
    pub(super) job_rank: Option<i32>,
}

impl RankFacts {
    /// Returns the key of the first one with its hash and rank: a report's folder tells others apart.
    fn key(&self) -> RankKey {
        RankKey { hash: comm_hash_of_name(&self.comm_hash), instance: 0, rank: self.rank, pid: self.pid }
    }
}

/// The ranks of one recording.
#[derive(Debug, Default)]
pub(super) struct Who {
    by_process: HashMap<u32, Vec<RankFacts>>,
    /// Commands of processes, and their ranks in the job.
    processes: HashMap<u32, (Option<String>, Option<i32>)>,
}

impl Who {
    pub(super) fn of(source: &Source) -> Self {
        Self::parse(&source.text)
    }

    fn parse(report: &str) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Report {
            targets: Vec<Value>,
            communicators: Vec<Value>,
        }
        let report: Report = serde_json::from_str(report).unwrap_or_default();
        let mut who = Self::default();
        for facts in report.communicators.into_iter().take(MAX_RANKS) {
            if let Ok(facts) = serde_json::from_value::<RankFacts>(facts) {
                who.by_process.entry(facts.pid).or_default().push(facts);
            }
        }
        for target in report.targets.iter().take(MAX_RANKS) {
            let Some(pid) = target["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()) else { continue };
            let name = target["name"].as_str().map(str::to_owned);
            let rank = target["job"]["rank"].as_i64().and_then(|rank| i32::try_from(rank).ok());
            who.processes.insert(pid, (name, rank));
        }
        who
    }

    /// Returns the facts about a rank. Where rows of a rank are put beside those of another recording, its
    /// number among the communicators of one hash is not that of the report.
    pub(super) fn rank(&self, key: RankKey) -> Option<&RankFacts> {
        let hash = comm_hash_name(key.hash);
        let same = |facts: &&RankFacts| facts.rank == key.rank && facts.comm_hash == hash;
        let known = || self.by_process.get(&key.pid).into_iter().flatten().filter(same);
        known().find(|facts| facts.folder == key.comm_name()).or_else(|| known().next())
    }

    /// Returns all ranks of communicators, in the order of processes.
    pub(super) fn keys(&self) -> impl Iterator<Item = RankKey> {
        let mut keys: Vec<RankKey> = self.by_process.values().flatten().map(RankFacts::key).collect();
        keys.sort_unstable();
        keys.into_iter()
    }

    /// Returns the facts about all ranks of communicators.
    pub(super) fn all(&self) -> impl Iterator<Item = &RankFacts> {
        self.by_process.values().flatten()
    }

    /// Returns all ranks of a process.
    pub(super) fn ranks_of(&self, pid: u32) -> &[RankFacts] {
        self.by_process.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// Returns the command that a process runs.
    pub(super) fn command(&self, pid: u32) -> Option<&str> {
        self.processes.get(&pid)?.0.as_deref()
    }

    /// Returns the ranks in the job that a process has, sorted; several where it has several GPUs.
    pub(super) fn job_ranks(&self, pid: u32) -> Vec<i32> {
        let mut ranks: Vec<i32> = self.ranks_of(pid).iter().filter_map(|facts| facts.job_rank).collect();
        ranks.extend(self.processes.get(&pid).and_then(|(_, rank)| *rank));
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
        let who = Who::parse(
            r#"{"targets": [{"pid": 7, "name": "python3", "job": {"rank": 4}}, {"pid": 8, "job": null}, {}],
            "communicators": [
              {"commHash": "0x000000000000000a", "folder": "0x000000000000000a", "rank": 1, "nRanks": 8, "pid": 7,
               "commName": "dp", "jobRank": 5},
              {"commHash": "0x000000000000000a", "folder": "0x000000000000000a-1", "rank": 1, "nRanks": 8, "pid": 7},
              {"rank": "nonsense"}]}"#,
        );
        let key = |hash, instance, rank, pid| RankKey { hash: Some(hash), instance, rank, pid };
        assert_eq!(who.rank(key(10, 0, 1, 7)).unwrap().comm_name.as_deref(), Some("dp"));
        assert_eq!(who.rank(key(10, 1, 1, 7)).unwrap().comm_name, None);
        // A rank that was put beside another recording's.
        assert_eq!(who.rank(key(10, 5, 1, 7)).unwrap().comm_name.as_deref(), Some("dp"));
        assert!(who.rank(key(10, 0, 2, 7)).is_none() && who.rank(key(10, 0, 1, 8)).is_none());
        assert_eq!(who.job_ranks(7), [4, 5]);
        assert_eq!((who.command(7), who.command(8)), (Some("python3"), None));
        assert!(Who::parse("no report").ranks_of(7).is_empty());
    }
}
