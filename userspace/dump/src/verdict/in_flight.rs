//! Judges communicators with ops in flight that stand still: finds the ranks at which the waiting ends, and
//! the ranks that wait.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Case, Kind, MAX_SENTENCES, State, Verdict,
    causes::{self, Counts},
    circle::circle,
    disagreement, not_begun, pipelines, waits,
    waits::Waits,
};
use crate::Work;
use nccl_library::nccl::Direction;

pub(super) fn in_flight(case: &Case<'_>) -> Option<Verdict> {
    if !case.has_ops_in_flight() {
        return None;
    }
    let (dropped, none) = (pipelines::dropped_receives(&case.ranks), BTreeSet::new());
    let of_rank = |number, rank| waits::of_rank(rank, dropped.get(number).unwrap_or(&none));
    let waits: BTreeMap<u32, Waits> =
        case.ranks.iter().map(|(number, rank)| (*number, of_rank(number, rank))).collect();
    let mut verdict =
        Verdict::new(State::Stuck, format!("ops are in flight, and nothing moved for {:.1} s", case.seconds));
    let mut disagreement = disagreement::find(&case.ranks);
    let follow = |queued, starved| causes::follow(case, &waits, Counts { queued, starved });
    let (mut causes, mut victims) = follow(false, false);
    if causes.is_empty() && disagreement.is_empty() {
        (causes, victims) = follow(false, true);
    }
    if causes.is_empty() && disagreement.is_empty() {
        disagreement = circle(&case.ranks);
    }
    if causes.is_empty() && disagreement.is_empty() {
        (causes, victims) = follow(true, true);
    }
    if causes.is_empty() && disagreement.is_empty() {
        causes = broken_links(&waits);
        verdict.kind = (!causes.is_empty()).then_some(Kind::Failed);
    }
    let gone = gone_instead(case, &causes);
    if !gone.is_empty() {
        victims.extend(causes.keys());
        verdict
            .evidence
            .extend(causes.into_values().map(|why| format!("{why}, or has lost it with its connection")));
        causes = gone;
    }
    if disagreement.is_empty()
        && let Some(verdict) = not_begun::not_begun(case, &mut causes, &mut victims, &waits)
    {
        return Some(verdict);
    }
    if !disagreement.is_empty() {
        verdict.kind = Some(Kind::OtherOperation);
        // The disagreement explains the waiting, which may end at a rank that did what most ranks did.
        verdict.evidence.extend(disagreement.evidence);
        causes.retain(|rank, _| disagreement.ranks.contains(rank));
        for rank in disagreement.ranks {
            causes.entry(rank).or_default();
        }
        victims = case.ranks_where(|rank| !rank.proxy.ops.is_empty()).into_iter().collect();
    }
    let reasons = causes.values().filter(|why| !why.is_empty());
    verdict.evidence.extend(reasons.take(MAX_SENTENCES).cloned());
    let waiting = victims.iter().filter_map(|victim| {
        let (peer, why) = waits.get(victim)?.peers.first_key_value()?;
        Some(format!("rank {victim} waits for rank {peer}: {why}"))
    });
    verdict.evidence.extend(waiting.take(MAX_SENTENCES));
    if causes.keys().any(|rank| case.is_missing(*rank)) {
        verdict.evidence.extend(case.exited_sentence());
        verdict.evidence.extend(case.missing_sentence());
    }
    verdict.culprits = causes.into_keys().collect();
    verdict.kind = verdict.kind.or_else(|| kind_of(case, &verdict.culprits));
    verdict.victims = victims.into_iter().filter(|rank| !verdict.culprits.contains(rank)).collect();
    if verdict.culprits.is_empty() {
        let why = if waits.values().any(|waits| waits.unknown_peer) {
            verdict.state = State::Unknown;
            "cannot tell who is waited for, because the peers of ops are not known"
        } else {
            "the ranks wait for each other in a circle"
        };
        verdict.evidence.push(why.to_owned());
    }
    let is_unreadable = |rank: &u32| case.ranks.get(rank).is_some_and(|rank| rank.has_unreadable_ops());
    if verdict.culprits.iter().any(is_unreadable) {
        verdict.state = State::Unknown;
    }
    Some(verdict)
}

/// Returns the ranks whose processes are gone, if the waiting ends only at ranks that have launched less than
/// others and have no op in flight. A connection that breaks takes its op with it, so that the neighbour of a
/// rank that is gone looks as if it had not joined. One whose GPU runs nothing has not.
fn gone_instead(case: &Case<'_>, causes: &BTreeMap<u32, String>) -> BTreeMap<u32, String> {
    let (behind, _) = case.behind();
    let can_have_lost_it = |number: &u32| {
        let rank = case.ranks.get(number);
        behind.contains(number)
            && rank.is_some_and(|rank| {
                rank.proxy.ops.is_empty()
                    && !rank.process_state.is_halted()
                    && rank.work() != Some(Work::Idle)
            })
    };
    if causes.is_empty() || !causes.keys().all(can_have_lost_it) {
        return BTreeMap::new();
    }
    let gone = case.vanished().into_iter().filter(|(_, kind)| *kind == Kind::Gone);
    gone.filter_map(|(rank, _)| Some((rank, case.absent_sentence(rank)?))).collect()
}

/// Returns the kind of the surest culprit's trouble.
fn kind_of(case: &Case<'_>, culprits: &[u32]) -> Option<Kind> {
    let (behind, _) = case.behind();
    let first = culprits.first()?;
    if culprits.iter().any(|rank| case.is_missing(*rank)) {
        let vanished = case.vanished().into_iter().find(|(rank, _)| culprits.contains(rank));
        return Some(vanished.map_or(Kind::NotRead, |(_, kind)| kind));
    }
    let kind = if behind.contains(first) { Kind::NotJoined } else { Kind::NoProgress };
    Some(case.kind_of_halted(culprits).unwrap_or(kind))
}

/// Returns both ends of each connection that seems to have broken. NCCL does not keep which of them is to
/// blame.
fn broken_links(waits: &BTreeMap<u32, Waits>) -> BTreeMap<u32, String> {
    let mut ends = BTreeMap::new();
    for (rank, waits) in waits {
        for (peer, direction) in &waits.broken {
            let why = waits.peers.get(peer).map_or("", String::as_str);
            let (from, to) = match direction {
                Direction::Send => (rank, peer),
                Direction::Recv => (peer, rank),
            };
            ends.insert(*rank, format!("the link from rank {from} to rank {to} is down: rank {rank}, {why}"));
            ends.entry(*peer).or_default();
        }
    }
    ends
}
