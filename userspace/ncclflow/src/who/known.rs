//! What is known of processes and communicators, for whoever makes rows of them: the recording itself, or a reader of one.

use std::collections::{HashMap, HashSet};

use flow::schema::CommunicatorReport;

use super::{
    communicator::CommunicatorFacts,
    job::{Job, Largest},
    process::{ProcessFacts, Whose},
};
use crate::recording::Event;

/// A rank of a communicator: process as ncclflow sees it, `commHash` as folders are called, rank.
type Member = (u32, String, i32);

/// Everything that [`Event::Process`] and [`Event::Communicator`] said.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The latest of each number.
    processes: HashMap<u32, ProcessFacts>,
    communicators: HashMap<Member, CommunicatorFacts>,
}

impl Known {
    /// Takes note of an event; of others than those two nothing is noted.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Process(facts) => {
                self.processes.insert(facts.pid, ProcessFacts::clone(facts));
            }
            Event::Communicator(facts) => {
                let member = (facts.pid, facts.comm_hash.clone(), facts.rank);
                let facts = match self.communicators.remove(&member) {
                    Some(other) => CommunicatorFacts::clone(facts).and(&other),
                    None => CommunicatorFacts::clone(facts),
                };
                self.communicators.insert(member, facts);
            }
            _ => {}
        }
    }

    /// The process that has, or had last, this number.
    pub fn process(&self, pid: u32) -> Option<&ProcessFacts> {
        self.processes.get(&pid)
    }

    /// The rank of a communicator that this process is.
    pub fn communicator(&self, pid: u32, comm_hash: &str, rank: i32) -> Option<&CommunicatorFacts> {
        self.communicators.get(&(pid, comm_hash.to_owned(), rank))
    }

    /// Completes the rows of communicators. Gives the job of each of their processes.
    pub fn complete(&self, rows: &mut [CommunicatorReport]) -> HashMap<u32, Job> {
        let (mut of_processes, mut of_gpus) = (HashMap::new(), HashMap::new());
        for row in &mut *rows {
            if let Some(facts) = self.communicator(row.pid, &row.comm_hash, row.rank) {
                facts.fill(row);
            }
            let (Ok(n_ranks), Ok(rank)) = (u32::try_from(row.n_ranks), u32::try_from(row.rank)) else {
                continue;
            };
            let of_process: &mut Largest = of_processes.entry(row.pid).or_default();
            of_process.note(n_ranks, rank);
            let of_gpu: &mut Largest = of_gpus.entry((row.pid, row.cuda_dev)).or_default();
            of_gpu.note(n_ranks, rank);
        }
        let pids: HashSet<u32> = self.processes.keys().chain(of_processes.keys()).copied().collect();
        let unknown = Whose::default();
        let job_of = |pid: u32| {
            let largest = of_processes.get(&pid).copied().unwrap_or_default();
            (pid, Job::of(self.process(pid).map_or(&unknown, |facts| &facts.whose), largest))
        };
        let jobs: HashMap<u32, Job> = pids.into_iter().map(job_of).collect();
        for row in rows {
            let of_gpu = of_gpus.get(&(row.pid, row.cuda_dev)).copied().unwrap_or_default();
            let Some(job) = jobs.get(&row.pid) else { continue };
            let rank = job.rank_of_gpu(of_gpu);
            row.job_rank = rank.map(|(rank, _)| rank);
            row.job_rank_source = rank.map(|(_, source)| source.name().to_owned());
            row.job_name.clone_from(&job.name);
        }
        jobs
    }
}
