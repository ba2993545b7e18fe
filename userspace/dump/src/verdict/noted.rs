//! Weighs torch's notes beside what was measured of NCCL.
//!
//! torch numbers the collectives of a process group and notes each call before NCCL gets it, with its size
//! and line of code. So its notes tell which rank has not called what others have, or has called something
//! else, also where NCCL's counters cannot: of sends and receives as parts of a collective (`all_to_all`),
//! before 2.26, and of sizes. They never overrule what NCCL's memory shows. Where both tell, and tell
//! different things, both are said.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Case, Kind, Moving, RankReport, State, Verdict, disagreement::minority, inside_calls, named,
    pending_calls::without_counterpart, processes_of, subject,
};
use flow::text::joined;
use torch_history::{
    LATE_NS, Noted, NotedCall, NotedKind, NotedMessage, NotedMessages, NotedWay, first_difference, progress,
    seconds,
};

/// Maximum number of sides and groups of ranks that a sentence lists.
const MAX_LISTED: usize = 4;

/// Functions of torch's that NCCL's counters count (`seqNumber`); others are made of sends and receives.
pub(crate) const COUNTED: [&str; 9] = [
    "all_reduce",
    "allreduce",
    "broadcast",
    "reduce",
    "all_gather",
    "allgather",
    "_all_gather_base",
    "reduce_scatter",
    "_reduce_scatter_base",
];

/// Notes of all ranks that were read.
struct View<'a> {
    group: &'a str,
    ranks: BTreeMap<u32, &'a Noted>,
}

/// Ranks that have not called what others have.
struct Late<'a> {
    seq: u64,
    behind: BTreeSet<u32>,
    called: Vec<u32>,
    seconds: f64,
    what: &'a str,
}

/// A send or receive of a rank, whose other end the peer has not called.
struct OneSided<'a> {
    rank: u32,
    peer: u32,
    open: &'a NotedMessage,
    seconds: f64,
    /// Calls of the peer, and of the rank.
    theirs: u64,
    called: u64,
    lacks: &'static str,
}

impl OneSided<'_> {
    fn sentence(&self) -> String {
        let Self { rank, peer, open, seconds, theirs, called, lacks } = self;
        format!(
            "rank {rank} called {} {seconds:.1} s before, and rank {peer} has called {theirs} of {called} {lacks} \
             rank {rank}, by torch's flight recorder",
            open.what
        )
    }
}

/// Number under which ranks called different collectives, and the ranks by what must be the same on all
/// ranks, and its description.
type Difference<'a> = (u64, BTreeMap<(&'a str, &'a str), BTreeSet<u32>>);

impl<'a> View<'a> {
    /// Takes the notes of a case; `None` where notes are missing or not whole, or where something has moved
    /// since.
    fn of(case: &Case<'a>) -> Option<Self> {
        let is_still = case.ranks.values().all(|rank| rank.motion.is_still());
        if !is_still || case.ranks.len() < case.reports.len() {
            return None;
        }
        Self::of_ranks(case.ranks.values().copied())
    }

    /// Takes the notes of all groups that can be a case; `None` where those of a rank are missing or not whole,
    /// or where something has moved since.
    fn of_twins(case: &Case<'a>) -> Option<Vec<Self>> {
        let is_still = case.ranks.values().all(|rank| rank.motion.is_still());
        let first = case.ranks.values().next()?;
        if !is_still || case.ranks.len() < case.reports.len() || case.ranks.len() < 2 {
            return None;
        }
        let view = |group: &'a str| {
            let of_rank = |rank: &&'a RankReport| {
                let mut twins =
                    rank.noted_twins.iter().filter(|noted| noted.group == group && noted.is_whole);
                Some((rank.rank, twins.next()?))
            };
            let ranks: Option<_> = case.ranks.values().map(of_rank).collect();
            Some(Self { group, ranks: ranks? })
        };
        let is_one = |rank: &&RankReport| rank.noted_twins.len() == first.noted_twins.len();
        let all = case.ranks.values().all(is_one);
        first.noted_twins.iter().filter(|_| all).map(|noted| view(&noted.group)).collect()
    }

    fn of_ranks(ranks: impl Iterator<Item = &'a RankReport>) -> Option<Self> {
        let ranks: Option<BTreeMap<u32, &Noted>> =
            ranks.map(|rank| Some((rank.rank, rank.noted.as_ref()?))).collect();
        let ranks = ranks?;
        let group = &*ranks.values().next()?.group;
        let is_one = ranks.values().all(|noted| noted.is_whole && noted.group == group);
        let is_called = ranks.values().any(|noted| !noted.calls.is_empty() || !noted.messages.is_empty());
        (is_one && is_called && ranks.len() > 1).then_some(Self { group, ranks })
    }

    /// Finds the ranks whose latest call is the earliest, if others called more long before.
    fn late(&self) -> Option<Late<'a>> {
        let least = self.ranks.values().map(|noted| noted.last_seq()).min()?;
        let seq =
            self.ranks.values().filter_map(|noted| noted.next_after(least)).map(|call| call.seq).min()?;
        let (behind, others): (BTreeMap<&u32, &&Noted>, BTreeMap<&u32, &&Noted>) =
            self.ranks.iter().partition(|(_, noted)| noted.last_seq() == least);
        let calls = others.into_iter().filter_map(|(number, noted)| Some((*number, noted.call(seq)?)));
        let calls: Vec<(u32, (&NotedCall, &NotedKind))> = calls.collect();
        let called_ns = calls.iter().map(|(_, (call, _))| call.called_ns).min()?;
        let read_ns = behind.values().map(|noted| noted.read_ns).min()?;
        let waited = read_ns.saturating_sub(called_ns);
        let (_, (_, kind)) = calls.last()?;
        (waited >= LATE_NS).then(|| Late {
            seq,
            behind: behind.into_keys().copied().collect(),
            called: calls.iter().map(|(number, _)| *number).collect(),
            seconds: seconds(waited),
            what: &kind.what,
        })
    }

    /// Finds the first number under which ranks called different collectives, and which some rank has not
    /// completed.
    fn difference(&self) -> Option<Difference<'a>> {
        let from = self.ranks.values().filter_map(|noted| noted.first_seq()).max()?;
        let completed = self.ranks.values().map(|noted| noted.completed_seq()).min().flatten();
        let is_open = |seq| seq >= from && completed.is_none_or(|completed| seq > completed);
        let ranks: Vec<(u32, &Noted)> = self.ranks.iter().map(|(number, noted)| (*number, *noted)).collect();
        let (seq, sides) = first_difference(&ranks, is_open)?;
        let sides = sides
            .into_iter()
            .map(|(kind, ranks)| ((&*kind.must_match, &*kind.what), ranks.into_iter().collect()));
        Some((seq, sides.collect()))
    }

    /// Tells whether all ranks have called the same number of collectives, and nothing that any called goes on.
    fn is_through(&self) -> bool {
        let mut last = self.ranks.values().map(|noted| noted.last_seq());
        let first = last.next().flatten();
        let is_open = |way: &NotedWay| way.open.is_some();
        let goes_on = |noted: &Noted| {
            noted.completed_seq() != noted.last_seq()
                || noted.messages.iter().any(|with| is_open(&with.sends) || is_open(&with.receives))
        };
        first.is_some() && last.all(|last| last == first) && !self.ranks.values().any(|noted| goes_on(noted))
    }

    /// Finds sends and receives that a rank called long before, and whose other ends have not been called.
    fn one_sided(&self) -> Vec<OneSided<'a>> {
        let mut found = Vec::new();
        for (number, noted) in &self.ranks {
            for with in &noted.messages {
                let Some(theirs) = self.ranks.get(&with.peer).filter(|_| with.peer != *number) else {
                    continue;
                };
                let theirs = theirs.messages.iter().find(|theirs| theirs.peer == *number);
                let of_peer = |way: fn(&NotedMessages) -> &NotedWay| theirs.map_or(0, |all| way(all).called);
                for (own, theirs, lacks) in [
                    (&with.sends, of_peer(|all| &all.receives), "receives from"),
                    (&with.receives, of_peer(|all| &all.sends), "sends to"),
                ] {
                    let Some(open) = own.open.as_ref().filter(|_| theirs < own.called) else { continue };
                    let waited = noted.read_ns.saturating_sub(open.called_ns);
                    if waited >= LATE_NS {
                        let seconds = seconds(waited);
                        let (rank, peer, called) = (*number, with.peer, own.called);
                        found.push(OneSided { rank, peer, open, seconds, theirs, called, lacks });
                    }
                }
            }
        }
        found
    }

    fn late_sentence(&self, late: &Late<'_>) -> String {
        format!(
            "{} called collective {} of {}, which {} called {:.1} s before, by torch's flight recorder: {}",
            subject(&late.behind, ["has not", "have not"]),
            late.seq,
            self.group,
            named(&late.called),
            late.seconds,
            late.what
        )
    }

    fn difference_sentence(&self, (seq, sides): &Difference<'_>) -> String {
        let sides = sides.iter().take(MAX_LISTED);
        let sides = sides.map(|((_, what), ranks)| format!("{} called {what}", named(ranks)));
        let (group, sides) = (self.group, joined(sides, "; "));
        format!("collective {seq} of {group} differs, by torch's flight recorder: {sides}")
    }

    fn progress(&self) -> String {
        let ranks = self.ranks.iter().map(|(number, noted)| (*number, *noted));
        let furthest = |noted: &Noted| (noted.last_seq(), noted.completed_seq());
        let parts = progress(ranks, furthest, |ranks| named(ranks), MAX_LISTED);
        format!("torch's flight recorder of {}: {parts}", self.group)
    }

    /// Tells how old the notes are. If the watchdog stops, its notes stop, too.
    fn age(&self) -> String {
        let age = |at: fn(&Noted) -> Option<i64>| {
            let ages = self.ranks.values().filter_map(|noted| Some(noted.read_ns.saturating_sub(at(noted)?)));
            ages.min().map(seconds)
        };
        let called = age(|noted| noted.calls.last().map(|call| call.called_ns)).unwrap_or_default();
        let noticed = age(|noted| noted.noticed_ns).map_or_else(
            || "its watchdog has noticed no completion".to_owned(),
            |noticed| {
                format!("the latest completion that its watchdog noticed is {noticed:.1} s old, and the watchdog can hang, too")
            },
        );
        format!("the latest call in torch's flight recorder is {called:.1} s old; {noticed}")
    }
}

/// Tells whether torch's notes of these ranks have different collectives under one number.
pub(super) fn tell_a_difference(ranks: &[RankReport]) -> bool {
    View::of_ranks(ranks.iter()).is_some_and(|view| view.difference().is_some())
}

/// Returns the verdict, weighed with torch's notes. `moving`: processes of each communicator that moves.
pub(super) fn weigh(case: &Case<'_>, mut verdict: Verdict, moving: &Moving) -> Verdict {
    let Some(view) = View::of(case) else { return weigh_twins(case, verdict, moving) };
    let (late, difference) = (view.late(), view.difference());
    let by_gpus = verdict.is_by_gpus(case.ranks.values().copied());
    match verdict.state {
        State::Healthy => match late {
            Some(late) if !is_measured(case, &late) => verdict = decided_by(case, &view, &late),
            Some(late) => {
                verdict.state = State::Unknown;
                verdict.evidence.extend([view.late_sentence(&late), BOTH.to_owned()]);
            }
            // Nobody waits for anything.
            None => match difference {
                Some(difference) => verdict.evidence.push(view.difference_sentence(&difference)),
                None => return verdict,
            },
        },
        State::Unknown => match (difference, late) {
            (Some(difference), _) => verdict = differs(case, &view, &difference, verdict),
            (None, Some(late)) if !is_measured(case, &late) => {
                verdict = decided_by(case, &view, &late).with(verdict.evidence);
            }
            (None, Some(late)) => verdict.evidence.extend([view.late_sentence(&late), BOTH.to_owned()]),
            (None, None) => match &*view.one_sided() {
                [] => verdict.evidence.push(view.progress()),
                open => verdict = one_sided(case, open).with(verdict.evidence),
            },
        },
        // A GPU that runs something does so in another communicator, or for no communicator.
        State::Stuck | State::Waiting if by_gpus && view.is_through() => {
            let through =
                format!("all that ranks called of {} has ended, by torch's flight recorder", view.group);
            verdict = Verdict::new(State::Healthy, through).with([view.progress()]);
        }
        State::Stuck | State::Waiting => match (difference, late) {
            // A rank that is in another call has not joined, and never will.
            (Some(difference), _) if by_gpus || has_not_joined(&verdict, &difference) => {
                verdict = differs(case, &view, &difference, verdict);
            }
            (Some(difference), _) => {
                beside(&mut verdict, view.difference_sentence(&difference), &minority(&difference.1));
            }
            (None, Some(late)) => beside(&mut verdict, view.late_sentence(&late), &late.behind),
            (None, None) => {
                verdict.evidence.push(view.progress());
                if verdict.kind == Some(Kind::NotJoined) {
                    verdict.evidence.push(CALLED_THE_SAME.to_owned());
                }
            }
        },
    }
    verdict.evidence.push(view.age());
    verdict
}

/// Weighs the notes of several process groups of the same ranks, of which nothing tells which is this
/// communicator: if sends and receives of one of them alone lack their other ends, the ranks wait for each
/// other, in whichever communicator; unless another one of the same processes moves: then they do not wait in that,
/// and its notes are among these.
fn weigh_twins(case: &Case<'_>, verdict: Verdict, moving: &Moving) -> Verdict {
    let Some(views) = View::of_twins(case).filter(|_| verdict.state == State::Unknown) else {
        return verdict;
    };
    if moving.contains(&processes_of(case.ranks.values().copied())) {
        return verdict;
    }
    let open: Vec<(&View<'_>, Vec<OneSided<'_>>)> =
        views.iter().map(|view| (view, view.one_sided())).filter(|(_, open)| !open.is_empty()).collect();
    let [(view, open)] = &*open else { return verdict };
    let which = format!(
        "that is in {}; which communicator it is, nothing tells: process groups {} have the same ranks",
        view.group,
        joined(views.iter().map(|view| view.group), ", ")
    );
    one_sided(case, open).with([which]).with(verdict.evidence).with([view.age()])
}

/// Returns the verdict that ranks wait for sends and receives that their peers have not called.
fn one_sided(case: &Case<'_>, open: &[OneSided<'_>]) -> Verdict {
    let mut evidence = vec![format!("nothing moved for {:.1} s", case.seconds)];
    evidence.extend(open.iter().take(MAX_LISTED).map(OneSided::sentence));
    let whom = open.iter().map(|one| (one.rank, one.peer));
    let mut found = without_counterpart(whom, evidence);
    case.add_halted(&mut found);
    found
}

/// Sentences that leave both explanations open.
const CALLED_THE_SAME: &str = "torch's flight recorder says otherwise: all ranks have called the same; so \
                               either the call has not come from torch to NCCL, or NCCL counted what torch \
                               did not call: both are possible";
const BOTH: &str = "NCCL's own memory says otherwise: all ranks have launched the same, and it holds nothing that waits; so either \
                    the call has not come from torch to NCCL, or torch's flight recorder is of something else: both are possible";

/// Adds a sentence to a verdict that NCCL's memory has given. Its culprits stay.
fn beside(verdict: &mut Verdict, sentence: String, culprits: &BTreeSet<u32>) {
    let agrees = verdict.culprits.iter().any(|rank| culprits.contains(rank));
    verdict.evidence.push(sentence);
    if !agrees {
        verdict.evidence.push(format!(
            "torch's flight recorder points to {}, and NCCL's memory to {}: both explanations are possible",
            named(culprits),
            if verdict.culprits.is_empty() { "no rank".to_owned() } else { named(&verdict.culprits) }
        ));
    }
}

/// Tells whether NCCL's memory or the GPUs speak against the late call: if only some ranks had made it, the
/// counters would differ.
fn is_measured(case: &Case<'_>, late: &Late<'_>) -> bool {
    let called = || late.called.iter().filter_map(|rank| case.ranks.get(rank));
    let is_on_its_way = called().any(|rank| {
        rank.pending.as_ref().is_some_and(|pending| !pending.is_empty())
            || inside_calls::waits_in_call(case, rank).is_some()
            || rank.set_up.is_some()
    });
    let function = late.what.split(' ').next().unwrap_or_default();
    let is_counted = COUNTED.contains(&function)
        && case.behind().1 > 0
        && case.ranks.values().all(|rank| !rank.counters.seq_number.is_empty());
    let gpus_are_idle = called().all(|rank| rank.work() == Some(crate::rank_gpu::Work::Idle));
    !is_on_its_way && (is_counted || gpus_are_idle)
}

/// Returns the verdict that the others wait for the ranks that are behind.
fn decided_by(case: &Case<'_>, view: &View<'_>, late: &Late<'_>) -> Verdict {
    let evidence = vec![format!("nothing moved for {:.1} s", case.seconds), view.late_sentence(late)];
    let mut verdict = case.stuck(Kind::NotJoined, late.behind.iter().copied(), evidence);
    case.add_halted(&mut verdict);
    verdict.with([view.progress()])
}

/// Tells whether the others wait for just those ranks that called something else.
fn has_not_joined(verdict: &Verdict, difference: &Difference<'_>) -> bool {
    let others = minority(&difference.1);
    verdict.kind == Some(Kind::NotJoined) && verdict.culprits.iter().all(|rank| others.contains(rank))
}

/// Returns the verdict that ranks called different collectives under one number, and the others wait for the
/// minority.
fn differs(case: &Case<'_>, view: &View<'_>, difference: &Difference<'_>, verdict: Verdict) -> Verdict {
    let culprits = minority(&difference.1);
    let mut evidence = verdict.evidence;
    evidence.push(view.difference_sentence(difference));
    if difference.1.values().map(BTreeSet::len).sum::<usize>() == culprits.len() {
        evidence.push("which of them is right cannot be known: no side has more ranks".to_owned());
    }
    case.stuck(Kind::OtherOperation, culprits, evidence)
}

#[cfg(test)]
mod tests;
