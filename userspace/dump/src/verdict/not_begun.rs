//! Judges operations that ranks have launched and of which no GPU is seen to have begun any: all compute before
//! them, or wait behind other work. None holds the others up more than they do, and a job that computes for long is
//! healthy.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Case, State, Verdict, named,
    steps::gpu_has_begun,
    waits::{self, Waits},
};
use crate::{RankReport, Work};

/// Tells whether no GPU is seen to have begun the collective that the ranks have launched. `causes`: the ranks at which
/// the waiting ends.
fn nobody_has_begun(case: &Case<'_>, causes: &BTreeMap<u32, String>, waits: &BTreeMap<u32, Waits>) -> bool {
    let is_own = |number: &u32| waits.get(number).is_some_and(|waits| waits.own.is_some());
    let has_not_begun = |rank: &&RankReport| {
        let mut unfinished = rank.proxy.ops.iter().filter(|op| op.is_unfinished());
        // The proxy begins those behind the oldest when that is over.
        let mut first = waits::oldest(&rank.proxy.ops).into_iter().flat_map(|(_, ops)| ops);
        first.all(|op| op.begun) && unfinished.all(|op| !op.p2p && !gpu_has_begun(op))
    };
    let (behind, _) = case.behind();
    // Of a single rank it is known that the others wait for its first step.
    causes.len() > 1
        && behind.is_empty()
        && causes.keys().all(is_own)
        && case.ranks.values().all(has_not_begun)
}

/// Returns the verdict on such operations, or leaves the halted ranks alone in `causes`, if there are any.
pub(super) fn not_begun(
    case: &Case<'_>,
    causes: &mut BTreeMap<u32, String>,
    victims: &mut BTreeSet<u32>,
    waits: &BTreeMap<u32, Waits>,
) -> Option<Verdict> {
    if !nobody_has_begun(case, causes, waits) {
        return None;
    }
    let is_halted = |number: &u32| case.ranks.get(number).is_some_and(|rank| rank.process_state.is_halted());
    if causes.keys().any(is_halted) {
        victims.extend(causes.keys().filter(|number| !is_halted(number)));
        causes.retain(|number, _| is_halted(number));
        return None;
    }
    let ranks: Vec<u32> = causes.keys().copied().collect();
    let of = named(&ranks);
    let ops = case.ranks.values().flat_map(|rank| &rank.proxy.ops).filter(|op| op.is_unfinished());
    let first = ops.min_by_key(|op| op.op_count)?;
    let what = format!("{} (op {})", first.coll.as_deref().unwrap_or("an op"), first.op_count);
    // Ranks of which nothing is in flight here have launched it, too.
    let computes = |rank: &&RankReport| matches!(rank.work(), Some(Work::Computes | Work::Moves));
    let verdict = if case.n_missing() == 0 && case.ranks.values().all(computes) {
        let why = format!("the GPUs of {of} compute, and {what} comes after that");
        Verdict::new(State::Healthy, why)
    } else {
        Verdict::cannot_tell(format_args!(
            "the GPUs of {of} have not begun {what}: they compute before it, or wait behind other work; nothing \
             moved for {:.1} s (a longer --interval shows whether they go on)",
            case.seconds
        ))
    };
    Some(verdict.with(case.gpu_sentences()))
}

#[cfg(test)]
mod tests {
    use nccl_library::nccl::Direction;

    use crate::{
        OpReport, RankReport, Work,
        verdict::{
            State,
            tests::made::{N, check, judge, op, over_nvlink, rank, waiting},
        },
    };

    /// A rank of a ring, none of whose steps was filled or came in, with another operation behind it.
    fn before(number: u32) -> RankReport {
        let of = |count, begun| {
            let both = [(Direction::Recv, (number + N - 1) % N), (Direction::Send, (number + 1) % N)];
            both.map(|(direction, peer)| OpReport { begun, ..op(direction, peer, count) })
        };
        rank(number, 6, [of(4, true), of(5, false)].concat())
    }

    #[test]
    fn of_ranks_that_all_compute_nobody_is_named() {
        let mut ranks = [0, 1, 2, 3].map(before);
        let said = "the GPUs of ranks 0, 1, 2, 3 have not begun AllReduce (op 4)";
        check(&judge(&ranks, &[]), State::Unknown, &[], &[], said);
        for rank in &mut ranks {
            rank.gpu = over_nvlink(0, 6, Some(Work::Computes)).gpu;
        }
        check(&judge(&ranks, &[]), State::Healthy, &[], &[], "AllReduce (op 4) comes after that");
        ranks[2].gpu = over_nvlink(0, 6, Some(Work::Waits)).gpu;
        check(&judge(&ranks, &[]), State::Unknown, &[], &[], "GPU of rank 2: 99 % busy, 0 % memory");
    }

    #[test]
    fn one_that_others_wait_for_in_it_is_named() {
        let waits = |number| RankReport { counters: before(number).counters, ..waiting(number) };
        let ranks = [waits(0), waits(1), before(2), waits(3)];
        check(&judge(&ranks, &[]), State::Stuck, &[2], &[0, 1, 3], "rank 2 makes no progress");
        let mut ranks = [0, 1, 2, 3].map(before);
        ranks[1].process_state = crate::ProcessState::Stopped;
        check(&judge(&ranks, &[]), State::Stuck, &[1], &[0, 2, 3], "rank 1 is stopped");
    }
}
