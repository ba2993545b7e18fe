//! Rank of a process in its job.

use super::report::ProcessHistory;
use crate::{dump::RankReport, target::Process, torch_notes::ProcessGroupReport, who::read_variables};
use flow::identity::{Job, Largest, Whose};

/// Returns the largest process group.
fn largest(history: &ProcessHistory) -> Option<&ProcessGroupReport> {
    let rings = history.notes.iter().flat_map(|notes| &notes.rings);
    rings.flat_map(|ring| &ring.groups).max_by_key(|group| group.ranks.len())
}

/// Sets the rank by torch's own note, or by the environment that the process was started with.
pub(super) fn by_itself(process: &Process, history: &mut ProcessHistory) {
    let Some(group) = largest(history) else { return };
    let noted = history.notes.iter().flat_map(|notes| &notes.rings).find_map(|ring| ring.rank).map(u64::from);
    if let Some(rank) = noted.filter(|rank| group.ranks.contains(rank)) {
        (history.rank, history.rank_from) = (Some(rank), Some("torch".to_owned()));
        return;
    }
    let n_ranks = u32::try_from(group.ranks.len()).unwrap_or(u32::MAX);
    let facts = Whose { environment: read_variables(process), ..Whose::default() };
    let job = Job::of(&facts, Largest { n_ranks, rank: None });
    let Some(rank) = job.rank.map(u64::from).filter(|rank| group.ranks.contains(rank)) else { return };
    history.rank_from = job.rank_source.map(|source| source.name().to_owned());
    history.rank = Some(rank);
}

/// Sets the rank by that of the process in a communicator with as many ranks as its largest group.
pub(super) fn by_communicator(history: &mut ProcessHistory, communicators: &[RankReport]) {
    let Some(group) = largest(history) else { return };
    let own = communicators.iter().filter(|rank| rank.pid == history.pid);
    let mut same: Vec<u32> =
        own.filter(|rank| rank.n_ranks as usize == group.ranks.len()).map(|rank| rank.rank).collect();
    same.sort_unstable();
    same.dedup();
    let [rank] = *same else { return };
    let Some(rank) = group.ranks.get(rank as usize).copied() else { return };
    (history.rank, history.rank_from) = (Some(rank), Some("communicator".to_owned()));
}
