//! torch's own notes of the collectives of these processes: in sentences beside the verdict, and for each
//! rank, for the verdict ([`noted`]). The notes are torch's word, of the time at which torch wrote them;
//! `ncclflow history` has all of them.

use super::{noted, process::Target, rank_report::RankReport};
use flow::text::joined;
use inspect::python::Runtimes;
use torch_history as torch_notes;
use torch_history::{Builds, CommRank, GroupHistory, HistoryState, ProcessHistory};

/// Maximum number of process groups that are told of; a job has some tens.
const MAX_GROUPS: usize = 32;

/// Returns a sentence for each process group, and one for each process whose notes cannot be read. `ranks`
/// are those that were read of NCCL; each gets torch's notes of it.
pub(super) fn read(targets: &[Target], ranks: &mut [RankReport], runtimes: &Runtimes) -> Vec<String> {
    let mut builds = Builds::default();
    let mut found: Vec<ProcessHistory> =
        targets.iter().map(|target| torch_notes::read(&target.process, &mut builds, runtimes)).collect();
    let mut groups = torch_notes::compare(&mut found, &comm_ranks(ranks));
    noted::add(ranks, &found);
    groups.sort_by_key(|group| std::cmp::Reverse(group.verdict.state));
    let told = groups.iter().take(MAX_GROUPS).filter_map(sentence);
    let more = groups.len().saturating_sub(MAX_GROUPS);
    let more = (more > 0).then(|| format!("and {more} more process groups: see `ncclflow history`"));
    let unknown = found.iter().filter_map(|process| {
        let why = process.notes.as_ref()?.unknown.as_deref()?;
        Some(format!("process {}: torch's flight recorder is unknown: {why}", process.pid))
    });
    told.chain(more).chain(unknown).collect()
}

/// Returns the ranks in the form in which torch's notes are compared with them.
pub(crate) fn comm_ranks(ranks: &[RankReport]) -> Vec<CommRank<'_>> {
    let all = ranks.iter().map(|rank| CommRank {
        comm_hash: &rank.comm_hash,
        n_ranks: rank.n_ranks,
        rank: rank.rank,
        pid: rank.pid,
    });
    all.collect()
}

fn sentence(group: &GroupHistory) -> Option<String> {
    let verdict = &group.verdict;
    // Where all is well, the progress of the ranks says enough.
    let chosen = match verdict.state {
        HistoryState::Agree | HistoryState::Unknown => verdict.sentences.last(),
        HistoryState::Waiting | HistoryState::Differ => verdict.sentences.first(),
    }?;
    // Without a call there is nothing to tell.
    group.members.iter().find(|member| member.last_seq.is_some())?;
    let ages = group.members.iter().filter_map(|member| member.completed_seconds_ago);
    let age = ages.reduce(f64::min).map_or_else(
        || "torch has noticed no completion".to_owned(),
        |age| format!("the latest completion that torch noticed is {age:.1} s old"),
    );
    let hashes = joined(group.comm_hashes.iter().map(|hash| format!(" (communicator {hash})")), "");
    Some(format!("torch's flight recorder, {age}{hashes}: {chosen}"))
}
