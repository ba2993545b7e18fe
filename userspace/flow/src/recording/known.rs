//! Facts about processes and communicators, for those that make rows: the recording itself, or a reader of
//! one.

use std::collections::{HashMap, HashSet};

use super::Event;
use crate::{
    identity::{CommunicatorFacts, Job, Largest, ProcessFacts, Whose},
    schema::CommunicatorReport,
};

/// Most entries that are kept, and communicators that are remembered. A node that has had more of them since
/// the recording began loses the oldest entries.
pub const MAX_KNOWN: usize = 65_536;

/// Most bytes of an event as JSON: a control group's path has up to 4,096.
const MAX_EVENT: usize = 16 << 10;

/// A rank of a communicator: the process as ncclflow sees it, `commHash` as folders are called, and the rank.
type Member = (u32, String, i32);

/// All facts from [`Event::Process`] and [`Event::Communicator`].
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The latest process of each number.
    processes: HashMap<u32, ProcessFacts>,
    communicators: HashMap<Member, CommunicatorFacts>,
}

impl Known {
    /// Notes an event of these two kinds, and ignores others. The event can come from a recording of
    /// anybody's making. An event that is larger than any that ncclflow writes is left out, and so are facts
    /// beyond a number that no node has.
    pub fn note(&mut self, event: &Event) {
        let is_ours = || serde_json::to_vec(event).is_ok_and(|text| text.len() <= MAX_EVENT);
        let has_room = self.processes.len().max(self.communicators.len()) < MAX_KNOWN;
        match event {
            Event::Process(_) | Event::Communicator(_) if !has_room || !is_ours() => {}
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

    /// Returns the process that has, or had last, this number.
    pub fn process(&self, pid: u32) -> Option<&ProcessFacts> {
        self.processes.get(&pid)
    }

    /// Returns the facts of the rank of a communicator that this process is.
    pub fn communicator(&self, pid: u32, comm_hash: &str, rank: i32) -> Option<&CommunicatorFacts> {
        self.communicators.get(&(pid, comm_hash.to_owned(), rank))
    }

    /// Adds rows of ranks that have none: the files end before their first op.
    pub fn add_missing(&self, rows: &mut Vec<CommunicatorReport>) {
        let has = |row: &CommunicatorReport| (row.pid, row.comm_hash.clone(), row.rank);
        let there: HashSet<Member> = rows.iter().map(has).collect();
        let mut missing: Vec<&CommunicatorFacts> = self
            .communicators
            .iter()
            .filter_map(|(member, facts)| (!there.contains(member)).then_some(facts))
            .collect();
        missing.sort_by_key(|facts| (&facts.comm_hash, facts.rank, facts.pid));
        rows.extend(missing.into_iter().filter_map(|facts| {
            Some(CommunicatorReport {
                comm_hash: facts.comm_hash.clone(),
                folder: facts.comm_hash.clone(),
                rank: facts.rank,
                n_ranks: facts.n_ranks?,
                pid: facts.pid,
                ..CommunicatorReport::default()
            })
        }));
    }

    /// Completes the rows of communicators. Returns the job of each of their processes.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::schema::NicRow;

    fn row(pid: u32, comm_hash: &str, rank: i32, n_ranks: i32) -> CommunicatorReport {
        CommunicatorReport {
            comm_hash: comm_hash.to_owned(),
            rank,
            n_ranks,
            pid,
            ..CommunicatorReport::default()
        }
    }

    fn facts(pid: u32, rank: i32, cuda_dev: u32) -> Event {
        let (comm_hash, cuda_dev) = ("0xa".to_owned(), Some(cuda_dev));
        Event::Communicator(Box::new(CommunicatorFacts {
            pid,
            comm_hash,
            rank,
            cuda_dev,
            ..CommunicatorFacts::default()
        }))
    }

    /// Covers two threads with a GPU each, and a smaller communicator, as of tensor parallelism.
    #[test]
    fn each_gpu_of_a_process_has_its_rank() {
        let mut known = Known::default();
        known.note(&facts(7, 4, 0));
        known.note(&facts(7, 5, 1));
        let mut rows = [row(7, "0xa", 4, 8), row(7, "0xa", 5, 8), row(8, "0xa", 6, 8)];
        let jobs = known.complete(&mut rows);
        let ranks: Vec<_> = rows.iter().map(|row| (row.job_rank, row.cuda_dev)).collect();
        assert_eq!(ranks, [(Some(4), Some(0)), (Some(5), Some(1)), (Some(6), None)]);
        assert_eq!((jobs[&7].rank, jobs[&7].size, jobs[&8].rank), (None, Some(8), Some(6)));
        assert!(rows.iter().all(|row| row.job_rank_source.as_deref() == Some("derived")));
    }

    /// As an event they stand in a recording that was killed: there is no report at its end.
    #[test]
    fn facts_of_a_killed_recording_are_read_with_network_devices() {
        let Event::Communicator(plain) = facts(7, 4, 0) else { unreachable!() };
        let nic = NicRow {
            name: Some("mlx5_0".to_owned()),
            sends: BTreeMap::from([(5, vec![0, 1])]),
            receives: BTreeMap::from([(-1, vec![0])]),
            ..NicRow::default()
        };
        let event = Event::Communicator(Box::new(CommunicatorFacts { nics: vec![nic], ..*plain }));
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.contains(r#""sends":{"5":[0,1]}"#), "{text}");
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }

    #[test]
    fn ranks_without_a_line_have_a_row() {
        let mut known = Known::default();
        for rank in [4, 5] {
            let Event::Communicator(facts) = facts(7, rank, 0) else { unreachable!() };
            known.note(&Event::Communicator(Box::new(CommunicatorFacts { n_ranks: Some(8), ..*facts })));
        }
        // Of a recording of before 1.6, which does not say how large it is.
        known.note(&facts(8, 6, 0));
        let mut rows = vec![row(7, "0xa", 4, 8)];
        known.add_missing(&mut rows);
        let ranks: Vec<_> = rows.iter().map(|row| (row.rank, row.n_ranks, &*row.folder)).collect();
        assert_eq!(ranks[1..], [(5, 8, "0xa")]);
    }

    #[test]
    fn what_nobody_writes_is_left_out() {
        let mut known = Known::default();
        let name = "x".repeat(MAX_EVENT);
        known.note(&Event::Process(Box::new(ProcessFacts { pid: 1, name, ..ProcessFacts::default() })));
        assert!(known.process(1).is_none());
        for pid in 0..100_000 {
            known.note(&Event::Process(Box::new(ProcessFacts { pid, ..ProcessFacts::default() })));
        }
        assert_eq!(known.processes.len(), MAX_KNOWN);
    }
}
