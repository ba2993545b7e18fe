//! Facts about a process: its job, user and container.

use super::{environment::read_variables, rank_map::RankMapFile};
use crate::process::{Description, Process, Users};
use flow::identity::{ProcessFacts, Whose};

/// Options `--rank-map` and `--job`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhoOptions {
    pub rank_map: Option<RankMapFile>,
    /// Name of the job of all processes.
    pub job: Option<String>,
}

impl WhoOptions {
    /// Returns the rank by `--rank-map`.
    pub fn rank(&self, host: &str, pid: u32) -> Option<u32> {
        self.rank_map.as_ref().and_then(|file| file.map().rank(host, pid))
    }
}

/// Reads the facts about the process with this number, if it is the one that was started then and has not
/// ended.
pub fn read_process(
    pid: u32,
    started: Option<u64>,
    host: &str,
    users: &Users,
    options: &WhoOptions,
) -> Option<ProcessFacts> {
    let process = Process::open(pid).ok()?;
    if process.started() != started {
        return None;
    }
    let Description { uid, user, cgroup, container, session_user, .. } =
        Description::read(&process, users, &[]);
    let environment = read_variables(&process);
    // Another process can have its number only once it has ended.
    let (mapped_rank, named_job) = (options.rank(host, pid), options.job.clone());
    let whose = Whose { uid, user, cgroup, container, session_user, environment, mapped_rank, named_job };
    (!process.has_exited()).then(|| ProcessFacts {
        pid,
        started_ticks: started,
        name: process.name().to_owned(),
        whose,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_only_if_it_is_the_one() {
        let pid = std::process::id();
        let started = Process::open(pid).unwrap().started();
        let options = WhoOptions { job: Some("llm".to_owned()), ..WhoOptions::default() };
        let read = |started| read_process(pid, started, "here", &Users::read(), &options);
        let facts = read(started).unwrap();
        assert_eq!(facts.whose.uid, rustix::process::getuid().as_raw());
        assert_eq!(facts.whose.named_job.as_deref(), Some("llm"));
        assert!(facts.whose.environment.is_some());
        assert_eq!(read(started.map(|started| started + 1)), None);
        let written = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<ProcessFacts>(&written).unwrap(), facts);
    }
}
