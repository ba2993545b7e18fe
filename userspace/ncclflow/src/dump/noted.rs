//! torch's notes of one rank's collectives, in the form that the verdict needs: the last one called, the last
//! one that torch has noticed to be completed, and a description of each of the latest.
//!
//! The rank's report has them, so that dumps of several hosts can be compared.

use serde::{Deserialize, Serialize};

use super::rank_report::RankReport;
use crate::{
    flight_recorder::{Entry, ProcessGroup},
    torch_notes::{NotesReport, ProcessHistory, Rank, RingReport, group_name},
};

/// Maximum number of collectives of a rank that are kept: the latest. A rank whose program runs ahead of its
/// GPU calls some tens of them.
const MAX_CALLS: usize = 64;

/// torch's notes of the process group that is this communicator's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Noted {
    /// Name and description of the group: `"tensor_parallel" (3)`.
    pub group: String,
    /// Unix time in ns at which the notes had been read.
    pub read_ns: i64,
    /// Unix time in ns of the latest start or completion that torch's watchdog has noticed, of any group of
    /// the process.
    pub noticed_ns: Option<i64>,
    /// The notes have all that a comparison of ranks needs.
    pub is_whole: bool,
    /// Kinds of the calls: text and what has to be the same on all ranks.
    pub kinds: Vec<NotedKind>,
    /// The latest collectives, oldest first.
    pub calls: Vec<NotedCall>,
}

/// Properties that several collectives share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotedKind {
    /// Description: `all_reduce [1024] Float (train.py:52)`.
    pub what: String,
    /// Text that must be the same on all ranks: function, element types, and sizes where they may not differ.
    pub must_match: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotedCall {
    /// torch's number of the collective in its group.
    pub seq: u64,
    /// Index of the call's kind in [`Noted::kinds`].
    pub kind: usize,
    /// Unix times in ns.
    pub called_ns: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_ns: Option<i64>,
}

impl Noted {
    /// Returns the number of the latest collective that was called.
    pub(super) fn last_seq(&self) -> Option<u64> {
        self.calls.last().map(|call| call.seq)
    }

    /// Returns the number of the latest collective that torch has noticed to be completed; those before it
    /// are, too.
    pub(super) fn completed_seq(&self) -> Option<u64> {
        self.calls.iter().rev().find(|call| call.completed_ns.is_some()).map(|call| call.seq)
    }

    pub(super) fn call(&self, seq: u64) -> Option<(&NotedCall, &NotedKind)> {
        let at = self.calls.binary_search_by_key(&seq, |call| call.seq).ok()?;
        let call = self.calls.get(at)?;
        Some((call, self.kinds.get(call.kind)?))
    }

    /// Returns the first call after a number.
    pub(super) fn next_after(&self, seq: Option<u64>) -> Option<&NotedCall> {
        self.calls.iter().find(|call| seq.is_none_or(|seq| call.seq > seq))
    }

    /// Makes the notes from the ring of a process and one of its groups.
    fn new(notes: &NotesReport, ring: &RingReport, group: &ProcessGroup) -> Self {
        let is_own = |entry: &&Entry| entry.is_of(&group.name, &group.description);
        let entries: Vec<&Entry> = ring.entries.iter().filter(is_own).collect();
        let rank = Rank::new(None, 0, notes.read_ns, &entries);
        let mut noted = Self {
            group: group_name(&group.name, &group.description),
            read_ns: notes.read_ns,
            noticed_ns: ring.noticed_ns,
            // Entries of a group that has none now can have been overwritten.
            is_whole: ring.enabled
                && ring.torn == 0
                && notes.unknown.is_none()
                && (!entries.is_empty() || ring.recorded <= ring.max_entries),
            ..Self::default()
        };
        for seq in rank.latest(MAX_CALLS) {
            let kind = NotedKind { what: rank.what(seq), must_match: rank.must_match(seq) };
            let at = noted.kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                noted.kinds.push(kind);
                noted.kinds.len() - 1
            });
            let called_ns = rank.called_ns(seq).unwrap_or_default();
            noted.calls.push(NotedCall { seq, kind: at, called_ns, completed_ns: rank.completed_ns(seq) });
        }
        noted
    }
}

/// Adds to each rank torch's notes of the group that is its communicator's.
pub(super) fn add(ranks: &mut [RankReport], processes: &[ProcessHistory]) {
    for rank in ranks {
        let process = processes.iter().find(|process| process.pid == rank.pid);
        rank.noted = process.and_then(|process| of_rank(rank, process));
    }
}

/// Returns the notes of the only group that can be this communicator's: with as many ranks, and this process
/// in this rank's place. Of several such groups it is the one that NCCL knows by its name, or else the only
/// one with collectives.
fn of_rank(rank: &RankReport, process: &ProcessHistory) -> Option<Noted> {
    let (notes, own) = (process.notes.as_ref()?, process.rank?);
    let mut fitting = Vec::new();
    for ring in &notes.rings {
        if ring.backend.as_deref().is_some_and(|backend| !backend.starts_with("nccl")) {
            continue;
        }
        let fits = |group: &&ProcessGroup| {
            group.ranks.len() == rank.n_ranks as usize && group.ranks.get(rank.rank as usize) == Some(&own)
        };
        fitting.extend(ring.groups.iter().filter(fits).map(|group| (ring, group)));
    }
    let is_named = |group: &ProcessGroup| {
        let name = rank.comm_name.as_deref();
        name.is_some_and(|name| name == &*group.name || name == &*group.description)
    };
    let is_called = |(ring, group): &(&RingReport, &ProcessGroup)| {
        let is_own = |entry: &Entry| entry.is_of(&group.name, &group.description);
        ring.entries.iter().any(|entry| is_own(entry) && !entry.is_p2p)
    };
    let only = |some: &[(&RingReport, &ProcessGroup)]| match some {
        [(ring, group)] => Some(Noted::new(notes, ring, group)),
        _ => None,
    };
    let named: Vec<_> = fitting.iter().copied().filter(|(_, group)| is_named(group)).collect();
    let called: Vec<_> = fitting.iter().copied().filter(is_called).collect();
    // A rank that has called nothing of its only group is the one to be told of.
    only(&named).or_else(|| only(&called)).or_else(|| only(&fitting))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(group: &str, seq: u64, completed: bool) -> Entry {
        Entry {
            process_group: [group.into(), "undefined".into()],
            collective_seq_id: seq,
            profiling_name: "nccl:all_reduce".to_owned(),
            input_sizes: vec![vec![8]],
            input_dtypes: vec!["Float".to_owned()],
            time_created_ns: 10 + seq.cast_signed(),
            time_discovered_completed_ns: completed.then_some(20),
            ..Entry::default()
        }
    }

    fn group(name: &str, ranks: &[u64]) -> ProcessGroup {
        ProcessGroup {
            name: name.into(),
            description: "undefined".into(),
            ranks: ranks.to_vec(),
            ..ProcessGroup::default()
        }
    }

    fn process(groups: Vec<ProcessGroup>, entries: Vec<Entry>) -> ProcessHistory {
        let ring = RingReport {
            backend: Some("nccl".to_owned()),
            enabled: true,
            max_entries: 2000,
            recorded: entries.len() as u64,
            groups,
            entries,
            ..RingReport::default()
        };
        let notes = NotesReport { rings: vec![ring], read_ns: 99, ..NotesReport::default() };
        ProcessHistory { pid: 7, rank: Some(5), notes: Some(notes), ..ProcessHistory::default() }
    }

    fn noted(comm_name: Option<&str>, process: ProcessHistory) -> Option<Noted> {
        let rank = RankReport {
            pid: 7,
            n_ranks: 2,
            rank: 1,
            comm_name: comm_name.map(str::to_owned),
            ..RankReport::default()
        };
        let mut ranks = [rank];
        add(&mut ranks, &[process]);
        let [rank] = ranks;
        rank.noted
    }

    #[test]
    fn a_communicator_gets_the_notes_of_the_group_in_which_its_process_has_that_place() {
        let entries = vec![entry("3", 1, true), entry("3", 2, false), entry("9", 7, false)];
        let groups = || vec![group("3", &[4, 5]), group("9", &[5, 4]), group("0", &[3, 4, 5])];
        let found = noted(None, process(groups(), entries.clone())).unwrap();
        assert_eq!((&*found.group, found.last_seq(), found.completed_seq()), ("(3)", Some(2), Some(1)));
        assert_eq!((found.kinds.len(), found.is_whole, found.read_ns), (1, true, 99));
        assert_eq!(found.call(2).unwrap().1.what, "all_reduce [8] Float");
        // Two groups of the same ranks that were both called: only NCCL's name tells them apart.
        let twins = || vec![group("3", &[4, 5]), group("9", &[4, 5])];
        assert_eq!(noted(None, process(twins(), entries.clone())), None);
        assert_eq!(noted(Some("9"), process(twins(), entries.clone())).unwrap().last_seq(), Some(7));
        // A group that was not called is not the one that NCCL has.
        let found = noted(None, process(twins(), entries[..2].to_vec())).unwrap();
        assert_eq!(&*found.group, "(3)");
    }

    #[test]
    fn notes_that_may_lack_something_are_not_whole() {
        let with = |change: fn(&mut RingReport), entries: Vec<Entry>| {
            let mut process = process(vec![group("3", &[4, 5])], entries);
            change(&mut process.notes.as_mut().unwrap().rings[0]);
            noted(None, process).unwrap().is_whole
        };
        assert!(with(|_| {}, vec![entry("3", 1, false)]) && with(|_| {}, Vec::new()));
        assert!(!with(|ring| ring.torn = 1, vec![entry("3", 1, false)]));
        assert!(!with(|ring| ring.enabled = false, vec![entry("3", 1, false)]));
        // The group's entries may have been overwritten by those of other groups.
        assert!(!with(|ring| ring.recorded = 2001, Vec::new()));
        assert!(with(|ring| ring.recorded = 2001, vec![entry("3", 1, false)]));
    }
}
