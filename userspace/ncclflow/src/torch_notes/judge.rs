//! Compares the ranks of a process group by what torch has noted of each. Pure: no process, no clock.
//!
//! Collectives are compared by torch's number of them in their group (`collective_seq_id`), as far as the
//! rings of all ranks reach back. Sends and receives are left out: each pair numbers them for itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    names::{self, Who},
    report::{GroupHistory, HistoryVerdict},
};
use crate::{flight_recorder::Entry, text::joined};

/// Age of a call from which on a rank that has not made it is said to be late: ranks are read one after the
/// other, while they run.
const LATE_NS: i64 = 1_000_000_000;

/// Agreement of the ranks of a group, in the order of severity: of several groups the highest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HistoryState {
    /// There is nothing to compare. That is so of many groups of a job on several hosts, and says nothing of
    /// the others.
    #[default]
    Unknown,
    /// All ranks called the same, and nothing has been waiting for long.
    Agree,
    /// A rank has not called what others called a second or more before, or torch has for as long not noticed
    /// that a collective is completed.
    Waiting,
    /// Ranks called different collectives under one number.
    Differ,
}

/// The verdict on one process group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupVerdict {
    pub state: HistoryState,
    /// Sentences, the most important one first.
    pub sentences: Vec<String>,
    /// The first collective that ranks called differently.
    pub difference: Option<Difference>,
    /// Ranks that have not called what others have.
    pub late: Option<Late>,
    /// The first collective that some rank has called and that torch has not noticed to be completed there.
    pub pending: Option<Late>,
    /// The latest collective that all ranks called: the rank that called last, and its delay after the first.
    pub called_last: Option<Late>,
    /// The latest collective that torch noticed to be completed on all ranks: the rank on which it did so
    /// last. torch looks every 0.1 s.
    pub completed_last: Option<Late>,
}

/// Ranks, a collective, and seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Late {
    pub collective_seq_id: u64,
    /// Ranks in the job, as far as they are known.
    pub ranks: Vec<u64>,
    pub pids: Vec<u32>,
    pub seconds: f64,
}

/// Number under which ranks called different collectives, and their calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    pub collective_seq_id: u64,
    pub calls: Vec<Call>,
}

/// A collective that some ranks called.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    pub ranks: Vec<u64>,
    pub pids: Vec<u32>,
    /// Description: `all_reduce [1024] Float (train.py:52)`.
    pub what: String,
}

/// Notes of one process on the group.
#[derive(Clone, Debug)]
pub(crate) struct Rank<'a> {
    who: Who,
    pid: u32,
    read_ns: i64,
    /// Entries by number of the collective; several where calls were put together (`_coalescing_manager`).
    collectives: BTreeMap<u64, Vec<&'a Entry>>,
}

/// Puts the entries of collectives together by their number.
pub(crate) fn by_collective<'a>(entries: impl Iterator<Item = &'a Entry>) -> BTreeMap<u64, Vec<&'a Entry>> {
    let mut collectives: BTreeMap<u64, Vec<&Entry>> = BTreeMap::new();
    for entry in entries.filter(|entry| !entry.is_p2p) {
        collectives.entry(entry.collective_seq_id).or_default().push(entry);
    }
    collectives
}

impl<'a> Rank<'a> {
    /// Makes the notes of a rank. `read_ns` is the Unix time at which the entries were read.
    pub(crate) fn new(rank: Option<u64>, pid: u32, read_ns: i64, entries: &[&'a Entry]) -> Self {
        Self { who: Who::of(rank, pid), pid, read_ns, collectives: by_collective(entries.iter().copied()) }
    }

    pub(super) fn first_seq(&self) -> Option<u64> {
        self.collectives.keys().next().copied()
    }

    pub(super) fn last_seq(&self) -> Option<u64> {
        self.collectives.keys().next_back().copied()
    }

    /// Returns the number of the latest collective with a completed entry. The collectives before it are
    /// completed, too: those of a group run one after the other. Parts of one that were put together are
    /// never marked themselves.
    pub(super) fn completed_seq(&self) -> Option<u64> {
        let completed = |entries: &[&Entry]| entries.iter().any(|entry| entry.is_completed());
        self.collectives.iter().rev().find(|(_, entries)| completed(entries)).map(|(seq, _)| *seq)
    }

    /// Returns the numbers of the latest collectives, oldest first.
    pub(crate) fn latest(&self, most: usize) -> impl Iterator<Item = u64> {
        self.collectives.keys().copied().skip(self.collectives.len().saturating_sub(most))
    }

    pub(crate) fn called_ns(&self, seq: u64) -> Option<i64> {
        self.collectives.get(&seq)?.iter().map(|entry| entry.time_created_ns).min()
    }

    /// Returns the Unix time in ns of the latest completion that torch has noticed.
    pub(crate) fn completed_ns(&self, seq: u64) -> Option<i64> {
        self.collectives.get(&seq)?.iter().filter_map(|entry| entry.time_discovered_completed_ns).max()
    }

    /// Returns the parts that must be the same on all ranks, as text that can be compared with that of a
    /// process on another host.
    pub(crate) fn must_match(&self, seq: u64) -> String {
        self.signature(seq).map(|calls| format!("{calls:?}")).unwrap_or_default()
    }

    /// Returns the parts that must be the same on all ranks: functions, element types, and sizes where they
    /// may not differ.
    fn signature(&self, seq: u64) -> Option<Vec<Signature<'a>>> {
        Some(self.collectives.get(&seq)?.iter().map(|entry| signature(entry)).collect())
    }

    /// Describes a collective: `all_reduce [1024] Float (train.py:52)`.
    pub(crate) fn what(&self, seq: u64) -> String {
        let Some(entries) = self.collectives.get(&seq) else { return "nothing".to_owned() };
        let Some(entry) = entries.last() else { return "nothing".to_owned() };
        let (sizes, dtypes) = (names::sizes(&entry.input_sizes), names::dtypes(&entry.input_dtypes));
        let line = names::line(entry).map(|line| format!("({line})")).unwrap_or_default();
        let several =
            if entries.len() > 1 { format!("and {} with it", entries.len() - 1) } else { String::new() };
        let parts = [entry.function(), &sizes, &dtypes, &several, &line];
        joined(parts.into_iter().filter(|part| !part.is_empty()), " ")
    }
}

type Signature<'a> = (&'a str, &'a [Vec<i64>], &'a [String]);

fn signature(entry: &Entry) -> Signature<'_> {
    let function = entry.function();
    let inputs = (function, &*entry.input_sizes, &*entry.input_dtypes);
    let outputs = (function, &*entry.output_sizes, &*entry.output_dtypes);
    // Tensors that a rank gives to the others, or gets from them, may be of another size there (`all_gather`
    // of uneven parts, `all_to_all`).
    if function.contains("reduce_scatter") {
        inputs
    } else if function.contains("all_gather") || function.contains("allgather") {
        outputs
    } else if ["all_reduce", "allreduce", "broadcast", "reduce"].iter().any(|name| function.contains(name)) {
        inputs
    } else {
        (function, &[], &[])
    }
}

fn split(who: &[&Rank<'_>]) -> (Vec<u64>, Vec<u32>) {
    let ranks = who.iter().filter_map(|rank| match rank.who {
        Who::Rank(number) => Some(number),
        Who::Process(_) => None,
    });
    (ranks.collect(), who.iter().map(|rank| rank.pid).collect())
}

fn named(who: &[&Rank<'_>]) -> String {
    names::ranks(&who.iter().map(|rank| rank.who).collect::<Vec<_>>())
}

#[expect(clippy::cast_precision_loss, reason = "seconds, for people")]
pub(crate) fn seconds(ns: i64) -> f64 {
    ns.max(0) as f64 / 1e9
}

fn late(seq: u64, who: &[&Rank<'_>], ns: i64) -> Late {
    let (ranks, pids) = split(who);
    Late { collective_seq_id: seq, ranks, pids, seconds: seconds(ns) }
}

/// Judges one process group. `size` is the number of its ranks, 0 if torch has not noted it.
pub(super) fn judge(name: &str, description: &str, size: usize, ranks: &[Rank<'_>]) -> GroupVerdict {
    let group = names::group(name, description);
    let mut verdict = GroupVerdict::default();
    let with: Vec<&Rank<'_>> = ranks.iter().filter(|rank| rank.last_seq().is_some()).collect();
    if with.is_empty() {
        verdict.sentences = vec![format!("{group}: torch has recorded no collective")];
        return verdict;
    }
    // The first number that the rings of all ranks still have.
    let from = with.iter().filter_map(|rank| rank.first_seq()).max().unwrap_or(0);
    let most = with.iter().filter_map(|rank| rank.last_seq()).max().unwrap_or(0);
    verdict.difference = difference(ranks, from, most);
    verdict.late = find_late(ranks, most);
    verdict.pending = find_pending(&with);
    let called = |rank: &Rank<'_>, seq: u64| rank.called_ns(seq);
    let completed = |rank: &Rank<'_>, seq: u64| rank.completed_ns(seq);
    verdict.called_last = last_of(ranks, from, called);
    verdict.completed_last = last_of(ranks, from, completed);

    if let Some(Difference { collective_seq_id, calls }) = &verdict.difference {
        verdict.state = HistoryState::Differ;
        let calls = joined(calls.iter().map(|call| format!("{} called {}", call.named(), call.what)), "; ");
        verdict.sentences.push(format!("{group}: collective {collective_seq_id} differs: {calls}"));
    }
    if let Some(late) = &verdict.late {
        verdict.state = verdict.state.max(HistoryState::Waiting);
        let missing: Vec<&Rank<'_>> = ranks.iter().filter(|rank| late.pids.contains(&rank.pid)).collect();
        let have: Vec<&Rank<'_>> =
            with.iter().filter(|rank| rank.called_ns(late.collective_seq_id).is_some()).copied().collect();
        let what = have.first().map(|rank| rank.what(late.collective_seq_id)).unwrap_or_default();
        let have_not = if missing.len() == 1 { "has not" } else { "have not" };
        verdict.sentences.push(format!(
            "{group}: {} {have_not} called collective {}, which {} called {:.1} s before: {what}",
            named(&missing),
            late.collective_seq_id,
            named(&have),
            late.seconds
        ));
    }
    if let Some(pending) = verdict.pending.as_ref().filter(|pending| pending.seconds >= seconds(LATE_NS)) {
        verdict.state = verdict.state.max(HistoryState::Waiting);
        let who: Vec<&Rank<'_>> =
            with.iter().filter(|rank| pending.pids.contains(&rank.pid)).copied().collect();
        let what = who.first().map(|rank| rank.what(pending.collective_seq_id)).unwrap_or_default();
        verdict.sentences.push(format!(
            "{group}: torch has not noticed that collective {} is completed on {}, called {:.1} s before: {what}",
            pending.collective_seq_id,
            named(&who),
            pending.seconds
        ));
    }
    if verdict.state == HistoryState::Unknown && (with.len() > 1 || size == 1) {
        verdict.state = HistoryState::Agree;
        let reach =
            if most > from { format!("collectives {from} to {most}") } else { format!("collective {most}") };
        verdict.sentences.push(format!("{group}: {} called the same: {reach}", named(&with)));
    }
    if verdict.state == HistoryState::Unknown {
        let of = if size > 0 { format!(" of {size}") } else { String::new() };
        verdict.sentences.push(format!("{group}: only {}{of} was read: nothing to compare", named(&with)));
    }
    verdict.sentences.extend(progress(&group, ranks));
    verdict
}

/// Describes the progress:
/// `"tp" (3): ranks 0-3 completed 11 (all_reduce [8] Float (model.py:88)); rank 5 completed 9, called 10 (…)`
fn progress(group: &str, ranks: &[Rank<'_>]) -> Option<String> {
    /// Maximum number of kinds of progress that are told apart; if each rank of a group is elsewhere, that
    /// says enough.
    const MAX: usize = 8;
    let mut by: BTreeMap<(Option<u64>, Option<u64>), Vec<&Rank<'_>>> = BTreeMap::new();
    for rank in ranks {
        by.entry((rank.completed_seq(), rank.last_seq())).or_default().push(rank);
    }
    let part = |((completed, called), who): (&(Option<u64>, Option<u64>), &Vec<&Rank<'_>>)| {
        let what = called.zip(who.first()).map(|(called, one)| one.what(called)).unwrap_or_default();
        progress_of(&named(who), *completed, *called, &what)
    };
    let parts = joined(by.iter().rev().take(MAX).map(part), "; ");
    let more = if by.len() > MAX { "; and others elsewhere" } else { "" };
    (!parts.is_empty()).then(|| format!("{group}: {parts}{more}"))
}

/// Describes how far ranks are: `ranks 0-3 completed 9, called 10 (all_reduce [8] Float (model.py:88))`.
/// `what` is the collective that was called last.
pub(crate) fn progress_of(who: &str, completed: Option<u64>, called: Option<u64>, what: &str) -> String {
    match (completed, called) {
        (_, None) => format!("{who} called none"),
        (None, Some(called)) => format!("{who} called {called} ({what})"),
        (Some(completed), Some(called)) if completed == called => {
            format!("{who} completed {completed} ({what})")
        }
        (Some(completed), Some(called)) => format!("{who} completed {completed}, called {called} ({what})"),
    }
}

impl Call {
    fn named(&self) -> String {
        let unknown = self.pids.iter().filter(|_| self.ranks.is_empty()).map(|pid| Who::Process(*pid));
        let who: Vec<Who> = self.ranks.iter().map(|rank| Who::Rank(*rank)).chain(unknown).collect();
        names::ranks(&who)
    }
}

/// Finds the first number from `from` on under which ranks called different collectives.
fn difference(ranks: &[Rank<'_>], from: u64, most: u64) -> Option<Difference> {
    let numbers = ranks.iter().flat_map(|rank| rank.collectives.range(from..=most).map(|(seq, _)| *seq));
    let numbers: std::collections::BTreeSet<u64> = numbers.collect();
    for seq in numbers {
        let mut by: Vec<(Vec<Signature<'_>>, Vec<&Rank<'_>>)> = Vec::new();
        for rank in ranks {
            let Some(signature) = rank.signature(seq) else { continue };
            match by.iter_mut().find(|(other, _)| *other == signature) {
                Some((_, who)) => who.push(rank),
                None => by.push((signature, vec![rank])),
            }
        }
        if by.len() > 1 {
            by.sort_by_key(|(_, who)| std::cmp::Reverse(who.len()));
            let calls = by.iter().filter_map(|(_, who)| {
                let (ranks, pids) = split(who);
                Some(Call { ranks, pids, what: who.first()?.what(seq) })
            });
            return Some(Difference { collective_seq_id: seq, calls: calls.collect() });
        }
    }
    None
}

/// Finds the ranks that have not called what others called long before they were read: those that miss the
/// lowest number.
fn find_late(ranks: &[Rank<'_>], most: u64) -> Option<Late> {
    let mut found: Option<(u64, i64, Vec<&Rank<'_>>)> = None;
    for rank in ranks.iter().filter(|rank| rank.last_seq().is_none_or(|last| last < most)) {
        let next = rank.last_seq().map_or(0, |last| last.saturating_add(1));
        // Numbers may have gaps, and a ring may not reach back so far.
        let called = ranks.iter().filter_map(|other| {
            let (seq, _) = other.collectives.range(next..).next()?;
            Some((*seq, other.called_ns(*seq)?))
        });
        let Some((seq, called)) = called.min() else { continue };
        let waited = rank.read_ns.saturating_sub(called);
        if waited < LATE_NS {
            continue;
        }
        match &mut found {
            Some((known, longest, who)) if *known == seq => {
                *longest = (*longest).max(waited);
                who.push(rank);
            }
            Some((known, ..)) if *known < seq => {}
            _ => found = Some((seq, waited, vec![rank])),
        }
    }
    found.map(|(seq, waited, who)| late(seq, &who, waited))
}

/// Finds the lowest number that some rank called and that is not completed there, and those ranks.
fn find_pending(ranks: &[&Rank<'_>]) -> Option<Late> {
    let next = |rank: &Rank<'_>| {
        let after = rank.completed_seq().map_or(0, |seq| seq.saturating_add(1));
        rank.collectives.range(after..).next().map(|(seq, _)| *seq)
    };
    let seq = ranks.iter().filter_map(|rank| next(rank)).min()?;
    let who: Vec<&Rank<'_>> = ranks.iter().filter(|rank| next(rank) == Some(seq)).copied().collect();
    let waited =
        who.iter().filter_map(|rank| Some(rank.read_ns.saturating_sub(rank.called_ns(seq)?))).max()?;
    Some(late(seq, &who, waited))
}

/// Finds the latest number at which every rank has a time, and the rank with the latest time.
fn last_of(ranks: &[Rank<'_>], from: u64, time: impl Fn(&Rank<'_>, u64) -> Option<i64>) -> Option<Late> {
    let first = ranks.first().filter(|_| ranks.len() > 1)?;
    for (seq, _) in first.collectives.range(from..).rev() {
        let times: Option<Vec<(i64, &Rank<'_>)>> =
            ranks.iter().map(|rank| Some((time(rank, *seq)?, rank))).collect();
        let Some(times) = times else { continue };
        let earliest = times.iter().map(|(at, _)| *at).min()?;
        let (latest, rank) = times.into_iter().max_by_key(|(at, _)| *at)?;
        return Some(late(*seq, &[rank], latest.saturating_sub(earliest)));
    }
    None
}

/// Returns the verdict of the worst group. Of several such, groups with late ranks come first, then the
/// longest wait.
pub(crate) fn over(groups: &[GroupHistory]) -> HistoryVerdict {
    let state = groups.iter().map(|group| group.verdict.state).max().unwrap_or_default();
    let waited = |group: &&GroupHistory| {
        let verdict = &group.verdict;
        let seconds = verdict.late.as_ref().or(verdict.pending.as_ref()).map_or(0.0, |late| late.seconds);
        // Whole microseconds, because floats have no total order.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and small"
        )]
        let waited = (seconds * 1e6) as u64;
        (verdict.late.is_some(), waited)
    };
    let worst = groups.iter().filter(|group| group.verdict.state == state);
    let sentence = if state == HistoryState::Agree {
        let count = worst.count();
        let several = if count == 1 { "" } else { "s" };
        let others = groups.len() - count;
        let others = if others > 0 {
            format!("; of {others} more there is nothing to compare")
        } else {
            String::new()
        };
        format!("the ranks of {count} process group{several} called the same{others}")
    } else {
        let sentence = worst.max_by_key(waited).and_then(|group| group.verdict.sentences.first().cloned());
        sentence.unwrap_or_else(|| "nothing is known: torch has recorded no collective".to_owned())
    };
    HistoryVerdict { state, sentence }
}

#[cfg(test)]
mod tests;
