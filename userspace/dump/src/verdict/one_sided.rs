//! Judges one-sided operations that the CPU makes: puts that do not complete, and waits for signals.
//!
//! A put that stands says which target, not whether that, the link or the rank's own adapter is to blame: a
//! target is named only if its process does not run. A rank that waits for more signals than its peer has
//! called puts waits for that peer.

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, Kind, MAX_SENTENCES, Verdict};
use crate::{OneSided, OneSidedProxy, RankReport, SignalWait, Work};
use flow::text::counted;

/// What keeps a rank.
struct Stand {
    rank: u32,
    /// Rank for whose answer, or whose signal, it waits.
    peer: Option<u32>,
    /// The peer has not called the put that the rank waits for.
    is_owed: bool,
    why: String,
}

/// Answers if the waiting ends at a rank that is known to keep the others.
pub(super) fn owed(case: &Case<'_>) -> Option<Verdict> {
    let stands = stands(case);
    let keeps = kept_by(case, &stands);
    // Whose process does not run is a surer reason than a call that was not made.
    let kind = *keeps.values().min_by_key(|kind| **kind == Kind::NoCounterpart)?;
    let victims: BTreeSet<u32> = stands.iter().map(|stand| stand.rank).collect();
    let victims = victims.into_iter().filter(|rank| !keeps.contains_key(rank));
    let evidence = format!("one-sided operations stand, and nothing moved for {:.1} s", case.seconds);
    let absent = keeps.keys().filter_map(|rank| case.absent_sentence(*rank)).take(MAX_SENTENCES);
    let evidence = vec![evidence];
    Some(Verdict::stuck(kind, keeps.keys().copied(), victims, evidence).with(absent).with(sentences(&stands)))
}

/// Leaves the verdict open if something stands and nothing tells why.
pub(super) fn standing(case: &Case<'_>) -> Option<Verdict> {
    let stands = stands(case);
    let why = "one-sided operations stand, and neither their targets' processes nor NCCL tell the \
               reason: the target's side, the link between, or the rank's own adapter";
    (!stands.is_empty()).then(|| Verdict::cannot_tell(why).with(sentences(&stands)))
}

/// Adds what stands to a verdict that has another reason.
pub(super) fn add(case: &Case<'_>, verdict: &mut Verdict) {
    let stands = stands(case);
    let new: Vec<String> =
        sentences(&stands).filter(|sentence| !verdict.evidence.contains(sentence)).collect();
    verdict.evidence.extend(new);
}

fn sentences(stands: &[Stand]) -> impl Iterator<Item = String> {
    stands.iter().take(MAX_SENTENCES).map(|stand| match stand.peer {
        Some(peer) => format!("rank {} waits for rank {peer}: {}", stand.rank, stand.why),
        None => format!("rank {}: {}", stand.rank, stand.why),
    })
}

/// Returns the ranks that keep others and wait for nobody themselves, and why.
fn kept_by(case: &Case<'_>, stands: &[Stand]) -> BTreeMap<u32, Kind> {
    let vanished: BTreeMap<u32, Kind> = case.vanished().into_iter().collect();
    let waits = |rank: u32| stands.iter().any(|stand| stand.rank == rank);
    let kind_of = |stand: &Stand| {
        let peer = stand.peer?;
        let known = case.kind_of_halted(&[peer]).or_else(|| vanished.get(&peer).copied());
        let owed = (stand.is_owed && !waits(peer)).then_some(Kind::NoCounterpart);
        Some((peer, known.or(owed)?))
    };
    stands.iter().filter_map(kind_of).collect()
}

fn stands(case: &Case<'_>) -> Vec<Stand> {
    let mut stands = Vec::new();
    // The proxy of a process that does not run moves nothing, whatever its targets do.
    let runs = |rank: &RankReport| !rank.process_state.is_halted();
    for (number, rank) in case.ranks.iter().filter(|(_, rank)| runs(rank)) {
        let Some(one_sided) = &rank.one_sided else { continue };
        // Over all readings, of which a loop may have made more of some ranks than of others.
        let stood = one_sided.queues.iter().filter(|queue| {
            queue.in_flight() > 0 && queue.still_seconds > 0.0 && queue.still_seconds >= rank.motion.seconds
        });
        stands.extend(stood.map(|queue| {
            let (what, place) = (queue.in_flight_words(), queue.place());
            let why = format!("{what}, through {place}: nothing got done for {:.1} s", queue.still_seconds);
            Stand { rank: *number, peer: queue.target, is_owed: false, why }
        }));
        if rank.motion.is_still() {
            stands.extend(one_sided.waits.iter().filter_map(|wait| stand_of(case, rank, wait)));
        }
    }
    stands
}

/// Returns the wait, if it is known that the rank has come to it and the peer's signal has not.
fn stand_of(case: &Case<'_>, rank: &RankReport, wait: &SignalWait) -> Option<Stand> {
    let SignalWait { context, peer, expected, arrived, has_begun, .. } = *wait;
    // A GPU that runs nothing has nothing before the wait in its stream.
    if !has_begun && rank.work() != Some(Work::Idle) {
        return None;
    }
    let given = case.ranks.get(&peer).and_then(|peer| peer.one_sided.as_ref());
    let given = given.filter(|given| !given.is_cut).map(|given| Given::to(given, context, rank.rank, peer));
    let is_owed = given.as_ref().is_some_and(|given| match (has_begun, given.called) {
        // What graphs replay is not counted.
        (true, _) => !given.is_in_flight,
        (false, Some(called)) => u64::from(called) < expected,
        (false, None) => false,
    });
    if arrived.is_none() && !is_owed {
        return None;
    }
    let called = given.and_then(|given| given.called).filter(|_| !has_begun);
    let called = called.map(|called| format!("; rank {peer} has called {} to it", counted(called, "put")));
    let why = format!("it {}{}", wait.describe(), called.unwrap_or_default());
    Some(Stand { rank: rank.rank, peer: Some(peer), is_owed, why })
}

/// What a rank has given to another one.
struct Given {
    /// Puts and signals; `None` where puts that were called together, of which the targets are not counted,
    /// can be among them.
    called: Option<u32>,
    is_in_flight: bool,
}

impl Given {
    fn to(one_sided: &OneSided, context: u32, target: u32, own: u32) -> Self {
        let queues = || {
            let of_rma = |proxy| matches!(proxy, Some(OneSidedProxy::Rma | OneSidedProxy::RmaGraph));
            one_sided.queues.iter().filter(move |queue| queue.context == context && of_rma(queue.proxy))
        };
        let is_counted = |slot| {
            queues().filter(move |queue| queue.slot == slot && queue.proxy == Some(OneSidedProxy::Rma))
        };
        let called = is_counted(target).map(|queue| queue.called).next().unwrap_or(0);
        Self {
            called: is_counted(own).next().is_none().then_some(called),
            is_in_flight: queues().any(|queue| queue.target == Some(target) && queue.called != queue.done),
        }
    }
}

#[cfg(test)]
mod tests;
