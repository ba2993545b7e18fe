//! Judges communicators without ops in flight of which some ranks launched fewer collectives than others.

use super::{Case, Kind, MAX_SENTENCES, State, Verdict};
use crate::Work;

pub(super) fn not_joined(case: &Case<'_>) -> Option<Verdict> {
    let (behind, most) = case.behind();
    if behind.is_empty() {
        return None;
    }
    let mut evidence = vec![format!("nothing moved for {:.1} s", case.seconds)];
    let sentences = behind.iter().take(MAX_SENTENCES).map(|rank| case.not_joined_sentence(*rank, most));
    evidence.extend(sentences);
    if are_in_one_operation(case, &behind) {
        evidence.push(
            "cannot tell which of them holds the others up: the GPU of each is still in the operation before"
                .to_owned(),
        );
        let verdict = Verdict { state: State::Unknown, evidence, ..Verdict::default() };
        return Some(verdict.with(case.gpu_sentences()));
    }
    let mut verdict = case.stuck(Kind::NotJoined, behind, evidence);
    case.add_halted(&mut verdict);
    verdict.evidence.extend(case.gpu_sentences());
    Some(verdict)
}

/// Tells whether several ranks are behind because an operation, which others are through with, does not end on
/// their GPUs: one of them stands in it, and the others wait for that one. Only where the GPU can be in no other
/// communicator.
fn are_in_one_operation(case: &Case<'_>, behind: &[u32]) -> bool {
    let waits = |number: &u32| {
        case.ranks.get(number).is_some_and(|rank| {
            rank.work() == Some(Work::Waits)
                && !rank.process_state.is_halted()
                && case.process_of(rank).is_some_and(|process| process.communicators == 1)
        })
    };
    behind.len() > 1 && behind.iter().all(waits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ProcessReport, ProcessState,
        verdict::{
            judge,
            tests::made::{check, over_nvlink},
        },
    };

    #[test]
    fn of_ranks_whose_gpus_are_in_one_operation_none_is_blamed() {
        let judged = |work: [Work; 2], communicators, state| {
            let mut ranks = [0, 1, 2, 3].map(|number| over_nvlink(number, 4, Some(Work::Waits)));
            for (rank, work) in ranks[2..].iter_mut().zip(work) {
                *rank = over_nvlink(rank.rank, 3, Some(work));
            }
            ranks[2].process_state = state;
            let process =
                |number: u32| ProcessReport { pid: 100 + number, communicators, ..ProcessReport::default() };
            judge(&ranks, &[0, 1, 2, 3].map(process))
        };
        let running = ProcessState::Running;
        let both = judged([Work::Waits, Work::Waits], 1, running);
        check(&both, State::Unknown, &[], &[], "cannot tell which of them holds the others up");
        // Their programs are elsewhere, or another communicator may hold the GPUs.
        assert_eq!(judged([Work::Idle, Work::Idle], 1, running).culprits, [2, 3]);
        assert_eq!(judged([Work::Waits, Work::Waits], 2, running).culprits, [2, 3]);
        assert_eq!(judged([Work::Waits, Work::Waits], 1, ProcessState::Stopped).culprits, [2]);
    }
}
