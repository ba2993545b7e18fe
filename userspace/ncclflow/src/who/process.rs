//! Facts about a process: its job, user and container.

use serde::{Deserialize, Serialize};

use super::{environment::Variables, rank_map::RankMapFile};
use crate::target::{Container, Description, Process, Users};

/// Options `--rank-map` and `--job`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhoOptions {
    pub rank_map: Option<RankMapFile>,
    /// Name of the job of all processes.
    pub job: Option<String>,
}

impl WhoOptions {
    /// Returns the rank by `--rank-map`.
    pub(super) fn rank(&self, host: &str, pid: u32) -> Option<u32> {
        self.rank_map.as_ref().and_then(|file| file.map().rank(host, pid))
    }
}

/// A process, and whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Process number, as ncclflow sees it.
    pub pid: u32,
    /// Start of the process. With the PID, it tells the process from all others of the host: see
    /// [`TargetReport`](crate::sinks::TargetReport).
    pub started_ticks: Option<u64>,
    /// The kernel's short name of the process.
    pub name: String,
    #[serde(flatten)]
    pub whose: Whose,
}

/// Owner and job of a process, which do not change while it lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whose {
    pub uid: u32,
    /// Name in the recording host's `/etc/passwd`, or the number where that has no name.
    pub user: String,
    pub cgroup: Option<String>,
    pub container: Option<Container>,
    /// Variables of launchers in its initial environment; `None` if that could not be read.
    pub environment: Option<Variables>,
    /// Rank by `--rank-map`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped_rank: Option<u32>,
    /// Job's name by `--job`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named_job: Option<String>,
}

impl ProcessFacts {
    /// Reads the facts about the process with this number, if it is the one that was started then and has not
    /// ended.
    pub(super) fn read(
        pid: u32,
        started: Option<u64>,
        host: &str,
        users: &Users,
        options: &WhoOptions,
    ) -> Option<Self> {
        let process = Process::open(pid).ok()?;
        if process.started() != started {
            return None;
        }
        let Description { uid, user, cgroup, container, .. } = Description::read(&process, users, &[]);
        let environment = Variables::read(&process);
        // Another process can have its number only once it has ended.
        let (mapped_rank, named_job) = (options.rank(host, pid), options.job.clone());
        let whose = Whose { uid, user, cgroup, container, environment, mapped_rank, named_job };
        (!process.has_exited()).then(|| Self {
            pid,
            started_ticks: started,
            name: process.name().to_owned(),
            whose,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_only_if_it_is_the_one() {
        let pid = std::process::id();
        let started = Process::open(pid).unwrap().started();
        let options = WhoOptions { job: Some("llm".to_owned()), ..WhoOptions::default() };
        let read = |started| ProcessFacts::read(pid, started, "here", &Users::read(), &options);
        let facts = read(started).unwrap();
        assert_eq!(facts.whose.uid, rustix::process::getuid().as_raw());
        assert_eq!(facts.whose.named_job.as_deref(), Some("llm"));
        assert!(facts.whose.environment.is_some());
        assert_eq!(read(started.map(|started| started + 1)), None);
        let written = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<ProcessFacts>(&written).unwrap(), facts);
    }
}
