//! Compares the ranks of a process group by what torch has noted of each. Pure: no process, no clock.
//!
//! Collectives are compared by torch's number of them in their group (`collective_seq_id`), as far as the
//! rings of all ranks reach back.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{GroupHistory, HistoryVerdict, Noted, NotedCall, first_difference, names, names::Who};
use flow::text::joined;
use torch::flight_recorder::Entry;

/// Age of a call from which on a rank that has not made it is said to be late: ranks are read one after the
/// other, while they run.
pub const LATE_NS: i64 = 1_000_000_000;

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
pub(super) struct Rank {
    who: Who,
    pid: u32,
    pub(super) noted: Noted,
}

impl Rank {
    /// Makes the notes of a rank. `read_ns` is the Unix time at which the entries were read.
    pub(super) fn new(rank: Option<u64>, pid: u32, read_ns: i64, entries: &[&Entry]) -> Self {
        Self { who: Who::of(rank, pid), pid, noted: Noted::of(entries, read_ns, usize::MAX) }
    }
}

fn split(who: &[&Rank]) -> (Vec<u64>, Vec<u32>) {
    let ranks = who.iter().filter_map(|rank| match rank.who {
        Who::Rank(number) => Some(number),
        Who::Process(_) => None,
    });
    (ranks.collect(), who.iter().map(|rank| rank.pid).collect())
}

fn named(who: &[&Rank]) -> String {
    names::ranks(&who.iter().map(|rank| rank.who).collect::<Vec<_>>())
}

#[expect(clippy::cast_precision_loss, reason = "seconds, for people")]
pub fn seconds(ns: i64) -> f64 {
    ns.max(0) as f64 / 1e9
}

fn late(seq: u64, who: &[&Rank], ns: i64) -> Late {
    let (ranks, pids) = split(who);
    Late { collective_seq_id: seq, ranks, pids, seconds: seconds(ns) }
}

/// Judges one process group. `size` is the number of its ranks, 0 if torch has not noted it.
pub(super) fn judge(name: &str, description: &str, size: usize, ranks: &[Rank]) -> GroupVerdict {
    let group = names::group(name, description);
    let mut verdict = GroupVerdict::default();
    let with: Vec<&Rank> = ranks.iter().filter(|rank| rank.noted.last_seq().is_some()).collect();
    if with.is_empty() {
        verdict.sentences = vec![format!("{group}: torch has recorded no collective")];
        return verdict;
    }
    let twice = read_twice(ranks);
    if !twice.is_empty() {
        let (who, were) = (names::ranks(&twice), if twice.len() == 1 { "was" } else { "were" });
        verdict.sentences = vec![format!(
            "{group}: {who} {were} read more than once: of several jobs, which are not compared"
        )];
        return verdict;
    }
    // The first number that the rings of all ranks still have.
    let from = with.iter().filter_map(|rank| rank.noted.first_seq()).max().unwrap_or(0);
    let most = with.iter().filter_map(|rank| rank.noted.last_seq()).max().unwrap_or(0);
    verdict.difference = difference(ranks, from);
    let (late, missing) = find_late(ranks, most).unzip();
    let (pending, uncompleted) = find_pending(&with).unzip();
    (verdict.late, verdict.pending) = (late, pending);
    verdict.called_last = last_of(ranks, from, |call| Some(call.called_ns));
    verdict.completed_last = last_of(ranks, from, |call| call.completed_ns);

    if let Some(Difference { collective_seq_id, calls }) = &verdict.difference {
        verdict.state = HistoryState::Differ;
        let calls = joined(calls.iter().map(|call| format!("{} called {}", call.named(), call.what)), "; ");
        verdict.sentences.push(format!("{group}: collective {collective_seq_id} differs: {calls}"));
    }
    if let Some(late) = &verdict.late {
        verdict.state = verdict.state.max(HistoryState::Waiting);
        let missing = missing.unwrap_or_default();
        let has_called = |rank: &&Rank| rank.noted.called_ns(late.collective_seq_id).is_some();
        let have: Vec<&Rank> = with.iter().copied().filter(has_called).collect();
        let what = have.first().map(|rank| rank.noted.what(late.collective_seq_id)).unwrap_or_default();
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
        let who = uncompleted.unwrap_or_default();
        let what = who.first().map(|rank| rank.noted.what(pending.collective_seq_id)).unwrap_or_default();
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
    let order = |noted: &Noted| (noted.completed_seq(), noted.last_seq());
    let parts = progress(ranks.iter().map(|rank| (rank, &rank.noted)), order, named, 8);
    verdict.sentences.push(format!("{group}: {parts}"));
    verdict
}

/// Describes the progress of ranks, those that come last by `order` first:
/// `ranks 0-3 completed 11 (all_reduce [8] Float (model.py:88)); rank 5 completed 9, called 10 (…)`. At most
/// `most` kinds of progress are told apart; if each rank of a group is elsewhere, that says enough.
pub fn progress<'a, W, O: Ord>(
    ranks: impl Iterator<Item = (W, &'a Noted)>,
    order: impl Fn(&Noted) -> O,
    named: impl Fn(&[W]) -> String,
    most: usize,
) -> String {
    let mut by: BTreeMap<O, (&Noted, Vec<W>)> = BTreeMap::new();
    for (who, noted) in ranks {
        by.entry(order(noted)).or_insert_with(|| (noted, Vec::new())).1.push(who);
    }
    let part = |(noted, who): &(&Noted, Vec<W>)| {
        let called = noted.last_seq();
        let what = called.and_then(|seq| noted.call(seq)).map_or("", |(_, kind)| &*kind.what);
        progress_of(&named(who), noted.completed_seq(), called, what)
    };
    let parts = joined(by.values().rev().take(most).map(part), "; ");
    let more = if by.len() > most { "; and others elsewhere" } else { "" };
    format!("{parts}{more}")
}

/// Describes how far ranks are: `ranks 0-3 completed 9, called 10 (all_reduce [8] Float (model.py:88))`.
/// `what` is the collective that was called last.
fn progress_of(who: &str, completed: Option<u64>, called: Option<u64>, what: &str) -> String {
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

/// Returns ranks that several processes have.
fn read_twice(ranks: &[Rank]) -> Vec<Who> {
    let mut seen = BTreeSet::new();
    let known = ranks.iter().map(|rank| rank.who).filter(|who| matches!(who, Who::Rank(_)));
    let twice: BTreeSet<Who> = known.filter(|who| !seen.insert(*who)).collect();
    twice.into_iter().collect()
}

/// Finds the first number from `from` on under which ranks called different collectives. The call of most
/// ranks comes first.
fn difference(ranks: &[Rank], from: u64) -> Option<Difference> {
    let noted: Vec<(&Rank, &Noted)> = ranks.iter().map(|rank| (rank, &rank.noted)).collect();
    let (collective_seq_id, mut sides) = first_difference(&noted, |seq| seq >= from)?;
    sides.sort_by_key(|(_, who)| std::cmp::Reverse(who.len()));
    let calls = sides.iter().map(|(kind, who)| {
        let (ranks, pids) = split(who);
        Call { ranks, pids, what: kind.what.clone() }
    });
    Some(Difference { collective_seq_id, calls: calls.collect() })
}

/// Finds the ranks that have not called what others called long before they were read: those that miss the
/// lowest number.
fn find_late(ranks: &[Rank], most: u64) -> Option<(Late, Vec<&Rank>)> {
    let mut found: Option<(u64, i64, Vec<&Rank>)> = None;
    for rank in ranks.iter().filter(|rank| rank.noted.last_seq().is_none_or(|last| last < most)) {
        let last = rank.noted.last_seq();
        let called = ranks.iter().filter_map(|other| other.noted.next_after(last));
        let Some((seq, called)) = called.map(|call| (call.seq, call.called_ns)).min() else { continue };
        let waited = rank.noted.read_ns.saturating_sub(called);
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
    found.map(|(seq, waited, who)| (late(seq, &who, waited), who))
}

/// Finds the lowest number that some rank called and that is not completed there, and those ranks.
fn find_pending<'r>(ranks: &[&'r Rank]) -> Option<(Late, Vec<&'r Rank>)> {
    let next = |rank: &Rank| Some(rank.noted.next_after(rank.noted.completed_seq())?.seq);
    let seq = ranks.iter().filter_map(|rank| next(rank)).min()?;
    let who: Vec<&Rank> = ranks.iter().filter(|rank| next(rank) == Some(seq)).copied().collect();
    let waited = |rank: &&Rank| Some(rank.noted.read_ns.saturating_sub(rank.noted.called_ns(seq)?));
    let waited = who.iter().filter_map(waited).max()?;
    Some((late(seq, &who, waited), who))
}

/// Finds the latest number at which every rank has a time, and the rank with the latest time.
fn last_of(ranks: &[Rank], from: u64, time: impl Fn(&NotedCall) -> Option<i64>) -> Option<Late> {
    let first = ranks.first().filter(|_| ranks.len() > 1)?;
    for NotedCall { seq, .. } in first.noted.calls.iter().rev().take_while(|call| call.seq >= from) {
        let time_of = |rank: &Rank| time(rank.noted.call(*seq)?.0);
        let times: Option<Vec<(i64, &Rank)>> =
            ranks.iter().map(|rank| Some((time_of(rank)?, rank))).collect();
        let Some(times) = times else { continue };
        let earliest = times.iter().map(|(at, _)| *at).min()?;
        let (latest, rank) = times.into_iter().max_by_key(|(at, _)| *at)?;
        return Some(late(*seq, &[rank], latest.saturating_sub(earliest)));
    }
    None
}

/// Returns the verdict of the worst group. Of several such, groups with late ranks come first, then the
/// longest wait.
pub fn over(groups: &[GroupHistory]) -> HistoryVerdict {
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
