//! torch's own notes of the collectives of these processes: in sentences beside the verdict, and for each
//! rank, for the verdict: the rank's report has them, so that dumps of several hosts can be compared. The
//! notes are torch's word, of the time at which torch wrote them; `ncclflow history` has all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{RankReport, some_at_once, verdict::COUNTED};
use flow::text::joined;
use inspect::{process::Process, python::Runtimes};
use torch::flight_recorder::{Entry, ProcessGroup};
use torch_history::{
    Builds, CommRank, GroupHistory, HistoryState, Noted, NotesReport, ProcessHistory, RingReport, names,
};

/// Maximum number of process groups that are told of; a job has some tens.
const MAX_GROUPS: usize = 32;
/// Maximum number of collectives of a rank that are kept: the latest. A rank whose program runs ahead of its
/// GPU calls some tens of them.
const MAX_CALLS: usize = 64;

/// Maximum number of groups of the same ranks of which all are kept.
const MAX_TWINS: usize = 4;

/// Reads torch's notes of these processes.
pub(crate) fn histories<'p>(
    processes: impl Iterator<Item = &'p Process>,
    runtimes: &Runtimes,
) -> Vec<ProcessHistory> {
    let mut found: Vec<(&Process, ProcessHistory)> =
        processes.map(|process| (process, ProcessHistory::default())).collect();
    some_at_once(found.iter_mut(), &|(process, history)| {
        *history = torch_history::read(process, &mut Builds::default(), runtimes);
    });
    found.into_iter().map(|(_, history)| history).collect()
}

/// Returns a sentence for each process group, and one for each process whose notes cannot be read. `ranks`
/// are those that were read of NCCL; each gets torch's notes of it.
pub(super) fn notes(mut found: Vec<ProcessHistory>, ranks: &mut [RankReport]) -> Vec<String> {
    let mut groups = torch_history::compare(&mut found, &comm_ranks(ranks));
    add(ranks, &found, &groups);
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

/// Adds to each rank torch's notes of the group that is its communicator's.
fn add(ranks: &mut [RankReport], processes: &[ProcessHistory], groups: &[GroupHistory]) {
    let counted = counted(ranks, processes, groups);
    for rank in ranks {
        let notes = notes_of(rank, processes);
        rank.noted = notes.and_then(|notes| of_rank(rank, notes, groups, counted.get(&*rank.comm_hash)));
        let twins = notes.filter(|_| rank.noted.is_none()).map(|notes| twins(rank, notes, groups));
        rank.noted_twins = twins.unwrap_or_default();
    }
}

fn notes_of<'p>(rank: &RankReport, processes: &'p [ProcessHistory]) -> Option<&'p NotesReport> {
    processes.iter().find(|process| process.pid == rank.pid)?.notes.as_ref()
}

/// A group of a process, and the notes that have it.
type Fitting<'n> = (&'n RingReport, &'n ProcessGroup);

/// Returns the groups that can be the rank's communicator: each of its ranks that was read has its place in
/// them.
fn fitting<'n>(rank: &RankReport, notes: &'n NotesReport, groups: &[GroupHistory]) -> Vec<Fitting<'n>> {
    let mut fitting = Vec::new();
    for ring in &notes.rings {
        if ring.backend.as_deref().is_some_and(|backend| !backend.starts_with("nccl")) {
            continue;
        }
        let fits = |group: &&ProcessGroup| {
            let mut same = groups.iter().filter(|known| known.is(group));
            same.any(|known| known.comm_hashes.contains(&rank.comm_hash))
        };
        fitting.extend(ring.groups.iter().filter(fits).map(|group| (ring, group)));
    }
    fitting
}

/// Name and description of a group.
type GroupName = (Arc<str>, Arc<str>);

/// Returns the group of each communicator of which several groups can be, where the numbers of collectives
/// tell: on each rank NCCL has launched as many as torch has called of that group, of no other group that can
/// be it, and no other communicator can be that group so.
fn counted(
    ranks: &[RankReport],
    processes: &[ProcessHistory],
    groups: &[GroupHistory],
) -> BTreeMap<String, GroupName> {
    let mut all: BTreeMap<&str, BTreeSet<GroupName>> = BTreeMap::new();
    for rank in ranks {
        let equal = |(ring, group): &Fitting<'_>| {
            let collectives = entries_of(ring, group).filter(|entry| !entry.is_p2p);
            let called = collectives.map(|entry| entry.collective_seq_id).max();
            ring.torn == 0 && called.is_some() && called == rank.counters.launched()
        };
        let notes = notes_of(rank, processes);
        let found = notes.into_iter().flat_map(|notes| fitting(rank, notes, groups)).filter(equal);
        let names: BTreeSet<GroupName> =
            found.map(|(_, group)| (Arc::clone(&group.name), Arc::clone(&group.description))).collect();
        let known = all.entry(&rank.comm_hash).or_insert_with(|| names.clone());
        known.retain(|name| names.contains(name));
    }
    let is_alone = |name: &GroupName| all.values().filter(|names| names.contains(name)).count() == 1;
    let only = all.iter().filter_map(|(hash, names)| Some((*hash, names.first()?, names.len())));
    only.filter(|(_, name, count)| *count == 1 && is_alone(name))
        .map(|(hash, name, _)| (hash.to_owned(), name.clone()))
        .collect()
}

/// Returns the notes of the only group that can be this communicator's. Of several such groups it is the one
/// that NCCL knows by its name, or else the only one with collectives, or with sends and receives where the
/// communicator has had no collective: torch makes a communicator of its own for the sends and receives of two
/// ranks; or else the only one with sends and receives, if the communicator has had some; or else the one with as
/// many collectives (`counted`).
fn of_rank(
    rank: &RankReport,
    notes: &NotesReport,
    groups: &[GroupHistory],
    counted: Option<&GroupName>,
) -> Option<Noted> {
    let fitting = fitting(rank, notes, groups);
    let is_named = |group: &ProcessGroup| {
        let name = rank.comm_name.as_deref();
        name.is_some_and(|name| name == &*group.name || name == &*group.description)
    };
    let is_counted = |group: &ProcessGroup| {
        counted.is_some_and(|(name, description)| *name == group.name && *description == group.description)
    };
    let is_called =
        |(ring, group): &Fitting<'_>, p2p: bool| entries_of(ring, group).any(|entry| entry.is_p2p == p2p);
    let with =
        |p2p: bool| -> Vec<_> { fitting.iter().copied().filter(|group| is_called(group, p2p)).collect() };
    let of = |is: &dyn Fn(&ProcessGroup) -> bool| -> Vec<_> {
        fitting.iter().copied().filter(|(_, group)| is(group)).collect()
    };
    let only = |some: &[Fitting<'_>]| match some {
        [(ring, group)] => Some(noted(notes, ring, group)),
        _ => None,
    };
    let has_no_collective = rank.counters.launched() == Some(0);
    let with_messages = || -> Vec<_> {
        let has_all = |(ring, _): &Fitting<'_>| ring.torn == 0 && has_first(ring);
        let all = Some(&fitting).filter(|fitting| has_messages(rank) && fitting.iter().all(has_all));
        let is_sent = |entry: &Entry| entry.is_p2p || !COUNTED.contains(&entry.function());
        let has_some = |(ring, group): &&Fitting<'_>| entries_of(ring, group).any(is_sent);
        all.into_iter().flatten().filter(has_some).copied().collect()
    };
    // A rank that has called nothing of its only group is the one to be told of.
    only(&of(&is_named))
        .or_else(|| has_no_collective.then(|| only(&with(true)))?)
        .or_else(|| only(&with(false)))
        .or_else(|| only(&fitting))
        .or_else(|| only(&with_messages()))
        .or_else(|| only(&of(&is_counted)))
}

/// Returns the notes of all groups that can be this communicator; none of very many.
fn twins(rank: &RankReport, notes: &NotesReport, groups: &[GroupHistory]) -> Vec<Noted> {
    let fitting = fitting(rank, notes, groups);
    let few = Some(fitting).filter(|fitting| fitting.len() <= MAX_TWINS);
    few.into_iter().flatten().map(|(ring, group)| noted(notes, ring, group)).collect()
}

/// Tells whether a communicator has launched sends and receives, or was asked for some: also those that a
/// collective is made of.
fn has_messages(rank: &RankReport) -> bool {
    let is_launched = rank.counters.p2p_op_count.is_some_and(|count| count > 0) && !rank.shares_resources;
    is_launched
        || rank.pending.as_ref().is_some_and(|pending| pending.p2p > 0)
        || rank.proxy.ops.iter().any(|op| op.p2p)
}

/// Tells whether nothing in a ring was overwritten.
fn has_first(ring: &RingReport) -> bool {
    ring.recorded <= ring.max_entries
}

fn entries_of<'a>(ring: &'a RingReport, group: &'a ProcessGroup) -> impl Iterator<Item = &'a Entry> {
    ring.entries.iter().filter(|entry| entry.is_of(&group.name, &group.description))
}

/// Makes the notes of a group from the ring of its process.
fn noted(notes: &NotesReport, ring: &RingReport, group: &ProcessGroup) -> Noted {
    let entries: Vec<&Entry> = entries_of(ring, group).collect();
    let all = Noted::of(&entries, notes.read_ns, MAX_CALLS);
    // A count says something only if nothing was overwritten.
    let has_first = has_first(ring);
    Noted {
        group: names::group(&group.name, &group.description),
        noticed_ns: ring.noticed_ns,
        // Entries of a group that has none now can have been overwritten.
        is_whole: ring.enabled
            && ring.torn == 0
            && notes.unknown.is_none()
            && (!entries.is_empty() || has_first),
        messages: if has_first { all.messages } else { Vec::new() },
        ..all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counters;

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

    fn noted_of(comm_name: Option<&str>, process: ProcessHistory) -> Option<Noted> {
        let rank = RankReport {
            comm_hash: "0x7".to_owned(),
            pid: 7,
            n_ranks: 2,
            rank: 1,
            comm_name: comm_name.map(str::to_owned),
            ..RankReport::default()
        };
        let mut ranks = [rank];
        notes(vec![process], &mut ranks);
        let [rank] = ranks;
        rank.noted
    }

    /// Ranks 1 and 3 of four: groups {2, 3} and {1, 3} both have rank 3 in place 1.
    #[test]
    fn the_places_of_all_ranks_tell_which_group_it_is() {
        let of_group = |name: &str, is_p2p| Entry { is_p2p, ..entry(name, 1, false) };
        let three = process(
            vec![group("tp", &[2, 3]), group("pp", &[1, 3])],
            vec![of_group("tp", false), of_group("pp", false), of_group("pp", true)],
        );
        let three = ProcessHistory { rank: Some(3), ..three };
        let one = process(
            vec![group("tp", &[0, 1]), group("pp", &[1, 3])],
            vec![of_group("tp", false), of_group("pp", false), of_group("pp", true)],
        );
        let one = ProcessHistory { pid: 8, rank: Some(1), ..one };
        let rank = |pid, rank| RankReport {
            comm_hash: "0x7".to_owned(),
            pid,
            n_ranks: 2,
            rank,
            ..RankReport::default()
        };
        let mut ranks = [rank(8, 0), rank(7, 1)];
        notes(vec![one, three], &mut ranks);
        assert!(ranks.iter().all(|rank| rank.noted.as_ref().is_some_and(|noted| noted.group == "(pp)")));
    }

    #[test]
    fn a_communicator_without_collectives_has_the_group_with_sends() {
        let twins = vec![group("3", &[4, 5]), group("9", &[4, 5])];
        let entries =
            vec![entry("3", 1, true), entry("9", 1, true), Entry { is_p2p: true, ..entry("9", 2, false) }];
        let process = process(twins, entries);
        let noted = |launched| {
            let counters = Counters { coll_op_count: Some(launched), ..Counters::default() };
            let rank = RankReport {
                comm_hash: "0x7".to_owned(),
                pid: 7,
                n_ranks: 2,
                rank: 1,
                counters,
                ..RankReport::default()
            };
            let mut ranks = [rank];
            notes(vec![process.clone()], &mut ranks);
            ranks[0].noted.as_ref().map(|noted| noted.group.clone())
        };
        assert_eq!((noted(0).as_deref(), noted(1).as_deref()), (Some("(9)"), None));
    }

    /// Two groups of the same two processes, each with collectives, and one with sends.
    #[test]
    fn a_communicator_with_sends_has_the_only_group_with_sends() {
        let noted = |of_ninth: Entry, recorded, counters: Counters, shares_resources| {
            let twins = vec![group("3", &[4, 5]), group("9", &[4, 5])];
            let entries = vec![entry("3", 1, true), entry("9", 1, true), of_ninth];
            let mut process = process(twins, entries);
            process.notes.as_mut().unwrap().rings[0].recorded = recorded;
            let mut ranks = [RankReport {
                comm_hash: "0x7".to_owned(),
                pid: 7,
                n_ranks: 2,
                rank: 1,
                counters,
                shares_resources,
                ..RankReport::default()
            }];
            notes(vec![process], &mut ranks);
            ranks[0].noted.as_ref().map(|noted| noted.group.clone())
        };
        let sent =
            |count| Counters { coll_op_count: Some(9), p2p_op_count: Some(count), ..Counters::default() };
        let send = || Entry { is_p2p: true, ..entry("9", 2, false) };
        let all_to_all = Entry { profiling_name: "nccl:all_to_all".to_owned(), ..entry("9", 2, false) };
        assert_eq!(noted(send(), 3, sent(4), false).as_deref(), Some("(9)"));
        assert_eq!(noted(all_to_all, 3, sent(4), false).as_deref(), Some("(9)"), "it is made of sends");
        assert_eq!(noted(send(), 3, sent(0), false), None, "it has sent nothing");
        assert_eq!(noted(send(), 3, sent(4), true), None, "another one may have sent it");
        assert_eq!(noted(send(), 2001, sent(4), false), None, "sends of the other may be overwritten");
        assert_eq!(noted(entry("9", 2, false), 3, sent(4), false), None, "neither has sent anything");
    }

    /// Two groups of the same two processes, each with collectives.
    #[test]
    fn twins_are_told_apart_by_the_number_of_collectives_on_all_ranks() {
        let of = |pid, rank, calls: [u64; 2]| {
            let twins = vec![group("world", &[4, 5]), group("pp", &[4, 5])];
            let entries = [("world", calls[0]), ("pp", calls[1])];
            let entries =
                entries.into_iter().flat_map(|(name, n)| (1..=n).map(move |seq| entry(name, seq, false)));
            ProcessHistory { pid, rank: Some(rank), ..process(twins, entries.collect()) }
        };
        let communicator = |hash: &str, launched: [u64; 2]| {
            [(8, 0), (7, 1)].map(|(pid, rank)| RankReport {
                comm_hash: hash.to_owned(),
                pid,
                n_ranks: 2,
                rank,
                counters: Counters { coll_op_count: Some(launched[rank as usize]), ..Counters::default() },
                ..RankReport::default()
            })
        };
        // What torch has called of the groups on both ranks, and what NCCL has launched of two communicators.
        let noted = |calls: [[u64; 2]; 2], launched: [[u64; 2]; 2]| {
            let [first, second] = launched;
            let mut ranks = [communicator("0x7", first), communicator("0x9", second)].concat();
            notes(vec![of(8, 4, calls[0]), of(7, 5, calls[1])], &mut ranks);
            ranks.into_iter().map(|rank| rank.noted.map(|noted| noted.group)).collect::<Vec<_>>()
        };
        let [world, pp] = ["(world)", "(pp)"].map(|name| Some(name.to_owned()));
        let told = noted([[4, 3], [4, 3]], [[3, 3], [4, 4]]);
        assert_eq!(told, [pp.clone(), pp, world.clone(), world]);
        let nothing = [None, None, None, None];
        assert_eq!(noted([[4, 4], [4, 4]], [[4, 4], [4, 4]]), nothing, "as many of both");
        // Rank 1 has called the fourth and not launched it.
        assert_eq!(noted([[4, 3], [4, 3]], [[4, 3], [9, 9]]), nothing, "on one rank only");
        // Neither has launched its fourth, so that both are like the other group.
        assert_eq!(noted([[4, 3], [4, 3]], [[3, 3], [3, 3]]), nothing, "of two communicators");
    }

    #[test]
    fn a_communicator_gets_the_notes_of_the_group_in_which_its_process_has_that_place() {
        let entries = vec![entry("3", 1, true), entry("3", 2, false), entry("9", 7, false)];
        let groups = || vec![group("3", &[4, 5]), group("9", &[5, 4]), group("0", &[3, 4, 5])];
        let found = noted_of(None, process(groups(), entries.clone())).unwrap();
        assert_eq!((&*found.group, found.last_seq(), found.completed_seq()), ("(3)", Some(2), Some(1)));
        assert_eq!((found.kinds.len(), found.is_whole, found.read_ns), (1, true, 99));
        assert_eq!(found.call(2).unwrap().1.what, "all_reduce [8] Float");
        // Two groups of the same ranks that were both called: only NCCL's name tells them apart.
        let twins = || vec![group("3", &[4, 5]), group("9", &[4, 5])];
        assert_eq!(noted_of(None, process(twins(), entries.clone())), None);
        let twins_of = |groups| {
            let mut ranks = [RankReport {
                comm_hash: "0x7".to_owned(),
                pid: 7,
                n_ranks: 2,
                rank: 1,
                ..RankReport::default()
            }];
            notes(vec![process(groups, entries.clone())], &mut ranks);
            let [rank] = ranks;
            rank.noted_twins.into_iter().map(|noted| noted.group).collect::<Vec<_>>()
        };
        assert_eq!(twins_of(twins()), ["(3)", "(9)"], "the notes of both are kept");
        assert_eq!(twins_of(groups()), [""; 0], "it is known which it is");
        assert_eq!(noted_of(Some("9"), process(twins(), entries.clone())).unwrap().last_seq(), Some(7));
        // A group that was not called is not the one that NCCL has.
        let found = noted_of(None, process(twins(), entries[..2].to_vec())).unwrap();
        assert_eq!(&*found.group, "(3)");
    }

    #[test]
    fn notes_that_may_lack_something_are_not_whole() {
        let with = |change: fn(&mut RingReport), entries: Vec<Entry>| {
            let mut process = process(vec![group("3", &[4, 5])], entries);
            change(&mut process.notes.as_mut().unwrap().rings[0]);
            noted_of(None, process).unwrap().is_whole
        };
        assert!(with(|_| {}, vec![entry("3", 1, false)]) && with(|_| {}, Vec::new()));
        assert!(!with(|ring| ring.torn = 1, vec![entry("3", 1, false)]));
        assert!(!with(|ring| ring.enabled = false, vec![entry("3", 1, false)]));
        // The group's entries may have been overwritten by those of other groups.
        assert!(!with(|ring| ring.recorded = 2001, Vec::new()));
        assert!(with(|ring| ring.recorded = 2001, vec![entry("3", 1, false)]));
    }
}
