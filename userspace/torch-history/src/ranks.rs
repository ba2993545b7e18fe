//! Rank of a process in its job.

use flow::identity::{Job, JobSource, JobVariable, Largest, Variables, Whose};
use inspect::{identity::read_variables, process::Process};
use torch::flight_recorder::ProcessGroup;

use super::report::ProcessHistory;

/// A rank of one of NCCL's communicators.
#[derive(Clone, Copy, Debug)]
pub struct CommRank<'a> {
    pub comm_hash: &'a str,
    pub n_ranks: u32,
    pub rank: u32,
    pub pid: u32,
}

/// Rank of a process by the environment that it was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldRank {
    pub rank: u32,
    /// Size of the job, where a variable states it.
    pub size: Option<u32>,
    /// Variable that states the rank.
    pub variable: JobVariable,
}

/// Returns what the environment states. `largest` is the largest communicator of the process: a rank that
/// does not fit it is not believed.
pub fn told_rank(process: &Process, largest: Largest) -> Option<ToldRank> {
    let whose = Whose { environment: read_variables(process), ..Whose::default() };
    let job = Job::of(&whose, largest);
    let Some(JobSource::Variable(variable)) = job.rank_source else { return None };
    let size = job.size.filter(|_| matches!(job.size_source, Some(JobSource::Variable(_))));
    Some(ToldRank { rank: job.rank?, size, variable })
}

/// Returns the largest process group.
fn largest(history: &ProcessHistory) -> Option<&ProcessGroup> {
    history.rings().flat_map(|ring| &ring.groups).max_by_key(|group| group.ranks.len())
}

/// Sets the rank by torch's own note, or by the environment that the process was started with.
pub(super) fn by_itself(process: &Process, history: &mut ProcessHistory) {
    let slurm = |variables: Variables| variables.text(JobVariable::SlurmJobId).map(str::to_owned);
    history.job = read_variables(process).and_then(slurm);
    let Some(group) = largest(history) else { return };
    let noted = history.rings().find_map(|ring| ring.rank).map(u64::from);
    if let Some(rank) = noted.filter(|rank| group.ranks.contains(rank)) {
        (history.rank, history.rank_from) = (Some(rank), Some("torch".to_owned()));
        return;
    }
    let n_ranks = u32::try_from(group.ranks.len()).unwrap_or(u32::MAX);
    let Some(told) = told_rank(process, Largest { n_ranks, rank: None }) else { return };
    if group.ranks.contains(&told.rank.into()) {
        (history.rank, history.rank_from) = (Some(told.rank.into()), Some(told.variable.name().to_owned()));
    }
}

/// Sets the rank by that of the process in a communicator with as many ranks as its largest group.
pub(super) fn by_communicator(history: &mut ProcessHistory, communicators: &[CommRank<'_>]) {
    let Some(group) = largest(history) else { return };
    let own = communicators.iter().filter(|rank| rank.pid == history.pid);
    let mut same = own.filter(|rank| rank.n_ranks as usize == group.ranks.len()).map(|rank| rank.rank);
    let Some(first) = same.next().filter(|first| same.all(|other| other == *first)) else { return };
    let Some(rank) = group.ranks.get(first as usize).copied() else { return };
    (history.rank, history.rank_from) = (Some(rank), Some("communicator".to_owned()));
}
