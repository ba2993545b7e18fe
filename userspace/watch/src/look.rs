//! A dump of a job in few words. Pure.

use std::sync::Arc;

use dump::{CommunicatorReport, DumpReport, Kind, ProcessReport, State};

use crate::{event::Culprit, phase::Phase, reading::CommKey};

/// Verdict of a dump on a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    pub state: State,
    pub kind: Option<Kind>,
    pub sentence: String,
    pub next: Option<String>,
    /// Communicator at which the waiting ends.
    pub root: Option<(String, u32)>,
    /// Communicators that are stuck, or in which ranks wait, by hash and size.
    pub standing: Vec<(String, u32)>,
    /// Communicators that are known to be healthy, likewise. Of others of the job it may not be known.
    pub healthy: Vec<(String, u32)>,
    pub culprits: Vec<Culprit>,
    pub waiting: Vec<u32>,
}

impl Look {
    pub fn of(report: &DumpReport) -> Self {
        let Some(job) = &report.job else { return Self::default() };
        let waits = |one: &&CommunicatorReport| matches!(one.verdict.state, State::Stuck | State::Waiting);
        let standing: Vec<&CommunicatorReport> = report.communicators.iter().filter(waits).collect();
        let is_named = |one: &&&CommunicatorReport| {
            job.communicators.iter().any(|name| *name == one.comm_hash || Some(name) == one.name.as_ref())
        };
        let root = standing.iter().find(is_named).or(standing.first()).copied();
        let key = |one: &CommunicatorReport| (one.comm_hash.clone(), one.n_ranks);
        Self {
            state: job.state,
            kind: job.kind,
            sentence: job.sentence.clone(),
            next: job.next.clone(),
            root: root.map(key),
            standing: standing.iter().map(|one| key(one)).collect(),
            healthy: report
                .communicators
                .iter()
                .filter(|one| one.verdict.state == State::Healthy)
                .map(key)
                .collect(),
            culprits: root.map_or_else(Vec::new, |root| culprits(root, &report.processes)),
            waiting: root.map_or_else(Vec::new, |root| root.verdict.victims.clone()),
        }
    }

    /// Returns the phase in which all culprits are, if they only have not come yet.
    pub fn phase(&self) -> Option<Phase> {
        let is_absence = matches!(
            self.kind,
            Some(
                Kind::NotJoined | Kind::CallNotMade | Kind::NoCounterpart | Kind::GpuIdle | Kind::Connecting
            )
        );
        let first = self.culprits.first()?.phase.filter(|_| is_absence)?;
        self.culprits.iter().all(|culprit| culprit.phase.is_some()).then_some(first)
    }

    /// Tells whether one of these communicators is among those that stand.
    pub(crate) fn has(&self, key: &Arc<CommKey>) -> bool {
        is_among(&self.standing, key)
    }

    pub(crate) fn is_healthy(&self, key: &Arc<CommKey>) -> bool {
        is_among(&self.healthy, key)
    }
}

fn is_among(all: &[(String, u32)], key: &Arc<CommKey>) -> bool {
    all.iter().any(|(hash, n_ranks)| *hash == key.hash && *n_ranks == key.n_ranks)
}

fn culprits(root: &CommunicatorReport, processes: &[ProcessReport]) -> Vec<Culprit> {
    let culprit = |number: &u32| {
        let rank = root.ranks.iter().find(|rank| rank.rank == *number);
        let process = rank.and_then(|rank| {
            processes.iter().find(|process| process.host == rank.host && process.pid == rank.pid)
        });
        let main = process.and_then(|process| process.python.as_ref());
        let main = main.and_then(|python| python.threads.iter().find(|thread| thread.is_main));
        Culprit {
            rank: *number,
            job_rank: process.and_then(|process| process.job_rank),
            pid: rank.map(|rank| rank.pid),
            gpu: rank.and_then(|rank| rank.nvml_dev),
            whereabouts: process.and_then(ProcessReport::whereabouts),
            phase: main.and_then(|main| Phase::of(&main.frames)),
        }
    };
    root.verdict.culprits.iter().map(culprit).collect()
}

#[cfg(test)]
mod tests {
    use dump::{JobVerdict, PythonReport, PythonThread, RankReport, Verdict};
    use flow::schema::PythonFrame;

    use super::*;

    fn report(function: &str) -> DumpReport {
        let rank = |rank: u32| RankReport { rank, pid: 100 + rank, n_ranks: 2, ..RankReport::default() };
        let frames = vec![PythonFrame { function: function.into(), ..PythonFrame::default() }];
        let mut main = PythonThread::default();
        (main.is_main, main.frames) = (true, frames);
        let python = PythonReport { threads: vec![main], ..PythonReport::default() };
        let process = ProcessReport { pid: 101, python: Some(python), ..ProcessReport::default() };
        let verdict = Verdict {
            state: State::Stuck,
            kind: Some(Kind::NotJoined),
            culprits: vec![1],
            victims: vec![0],
            ..Verdict::default()
        };
        let communicator = CommunicatorReport {
            comm_hash: "0x1".into(),
            n_ranks: 2,
            ranks: vec![rank(0), rank(1)],
            verdict,
            ..CommunicatorReport::default()
        };
        let job = JobVerdict { state: State::Stuck, kind: Some(Kind::NotJoined), ..JobVerdict::default() };
        DumpReport {
            job: Some(job),
            processes: vec![process],
            communicators: vec![CommunicatorReport::default(), communicator],
            ..DumpReport::default()
        }
    }

    #[test]
    fn the_culprit_has_its_process_and_a_checkpoint_is_a_phase() {
        let look = Look::of(&report("save_checkpoint"));
        assert_eq!((look.culprits[0].rank, look.culprits[0].pid), (1, Some(101)));
        assert_eq!((look.root, look.waiting.as_slice()), (Some(("0x1".to_owned(), 2)), &[0][..]));
        assert_eq!(Look::of(&report("save_checkpoint")).phase(), Some(Phase::Checkpoint));
        assert_eq!(Look::of(&report("step")).phase(), None);
    }
}
