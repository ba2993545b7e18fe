//! Joins the notes of all processes on each process group.

use std::collections::BTreeMap;

use super::{CommRank, GroupHistory, Member, ProcessHistory, judge, judge::Rank, seconds};
use torch::flight_recorder::{Entry, ProcessGroup};

/// A group in one process.
struct Part<'a> {
    process: &'a ProcessHistory,
    read_ns: i64,
    noted: Option<&'a ProcessGroup>,
    entries: Vec<&'a Entry>,
}

/// Identity of a group: job, backend, name, description and ranks. Ranks are empty where torch has not noted
/// them.
type Key<'a> = (Option<&'a str>, Option<&'a str>, &'a str, &'a str, &'a [u64]);

/// Finds and judges the process groups of all processes.
pub(super) fn of(processes: &[ProcessHistory]) -> Vec<GroupHistory> {
    let mut parts: BTreeMap<Key<'_>, Vec<Part<'_>>> = BTreeMap::new();
    for process in processes {
        let Some(notes) = &process.notes else { continue };
        for ring in &notes.rings {
            let mut entries: BTreeMap<(&str, &str), Vec<&Entry>> = BTreeMap::new();
            for entry in &ring.entries {
                let [name, description] = &entry.process_group;
                entries.entry((name, description)).or_default().push(entry);
            }
            let mut add = |(name, description), ranks, noted, entries| {
                let key = (process.job.as_deref(), ring.backend.as_deref(), name, description, ranks);
                let part = Part { process, read_ns: notes.read_ns, noted, entries };
                parts.entry(key).or_default().push(part);
            };
            for group in &ring.groups {
                let names = (&*group.name, &*group.description);
                add(names, &*group.ranks, Some(group), entries.remove(&names).unwrap_or_default());
            }
            // Groups whose members torch has not noted.
            for (names, entries) in entries {
                add(names, &[], None, entries);
            }
        }
    }
    let groups = parts.into_iter().map(|((_, backend, name, description, ranks), mut parts)| {
        parts.sort_by_key(|part| (part.process.rank.is_none(), part.process.rank, part.process.pid));
        let rank =
            |part: &Part<'_>| Rank::new(part.process.rank, part.process.pid, part.read_ns, &part.entries);
        let judged: Vec<Rank> = parts.iter().map(rank).collect();
        let verdict = judge::judge(name, description, ranks.len(), &judged);
        let members = parts.iter().zip(&judged).map(|(part, rank)| part.member(rank)).collect();
        GroupHistory {
            name: name.to_owned(),
            description: description.to_owned(),
            backend: backend.map(str::to_owned),
            comm_hashes: Vec::new(),
            ranks: ranks.to_vec(),
            verdict,
            members,
        }
    });
    groups.collect()
}

impl Part<'_> {
    fn member(&self, rank: &Rank) -> Member {
        let ago = |at: i64| seconds(self.read_ns.saturating_sub(at));
        let completed = self.entries.iter().filter_map(|entry| entry.time_discovered_completed_ns);
        Member {
            host: self.process.host.clone(),
            pid: self.process.pid,
            rank: self.process.rank,
            first_seq: rank.noted.first_seq(),
            last_seq: rank.noted.last_seq(),
            completed_seq: rank.noted.completed_seq(),
            called_seconds_ago: self.entries.iter().map(|entry| entry.time_created_ns).max().map(ago),
            completed_seconds_ago: completed.max().map(ago),
            status: self.noted.and_then(|group| group.status.clone()),
        }
    }
}

/// Adds the hashes of NCCL's communicators to the groups that they belong to: a communicator has as many
/// ranks as its group, and each process whose rank is known has the one that its place in the group says.
pub(super) fn add_hashes(
    groups: &mut [GroupHistory],
    processes: &[ProcessHistory],
    communicators: &[CommRank<'_>],
) {
    let rank_of = |pid: u32| processes.iter().find(|process| process.pid == pid)?.rank;
    let mut by_hash: BTreeMap<(&str, u32), Vec<&CommRank<'_>>> = BTreeMap::new();
    for rank in communicators {
        by_hash.entry((rank.comm_hash, rank.n_ranks)).or_default().push(rank);
    }
    for group in groups.iter_mut().filter(|group| !group.ranks.is_empty()) {
        let fits = |ranks: &[&CommRank<'_>]| {
            let known = ranks.iter().filter_map(|rank| Some((rank_of(rank.pid)?, rank.rank)));
            let mut known = known.map(|(own, rank)| group.ranks.get(rank as usize) == Some(&own)).peekable();
            known.peek().is_some() && known.all(|fits| fits)
        };
        let own = by_hash
            .iter()
            .filter(|((_, n_ranks), ranks)| *n_ranks as usize == group.ranks.len() && fits(ranks));
        group.comm_hashes = own.map(|((hash, _), _)| (*hash).to_owned()).collect();
    }
}
