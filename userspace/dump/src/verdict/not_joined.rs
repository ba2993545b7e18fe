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
            tests::made::{check, connected, over_nvlink},
        },
    };

    /// Two nodes; ranks 1 and 2 have the connections between them. A graph's replays are counted there alone.
    #[test]
    fn ranks_whose_launches_are_counted_in_other_ways_are_not_compared() {
        let ranks = |version: &str, graphs, counts: [u64; 4]| {
            let mut ranks = [0, 1, 2, 3].map(|number| over_nvlink(number, counts[number as usize], None));
            for rank in &mut ranks {
                rank.nccl_version = Some(version.to_owned());
                rank.counters.graph_plans = Some(graphs);
            }
            for rank in &mut ranks[1..3] {
                rank.connections = connected(rank.clone(), 0, 0).connections;
            }
            judge(&ranks, &[])
        };
        let replayed = [212, 90_412, 90_412, 212];
        for (version, graphs) in [("2.21.5", 3), ("2.21.5", 0), ("2.28.9", 3)] {
            let verdict = ranks(version, graphs, replayed);
            check(
                &verdict,
                State::Unknown,
                &[],
                &[],
                "whose launches NCCL counts alike launched the same number",
            );
            assert_eq!(ranks(version, graphs, [212, 90_412, 90_411, 212]).culprits, [2]);
        }
        assert_eq!(ranks("2.28.9", 0, replayed).culprits, [0, 3], "each launch is counted");
    }

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
