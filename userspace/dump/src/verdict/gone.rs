//! Judges communicators of which a rank's process is gone, or has left the communicator, while others wait on
//! their GPUs or in a call. With ops in flight the waiting itself leads there ([`super::in_flight`]).

use super::{Case, Kind, MAX_SENTENCES, Verdict, inside_calls, subject};
use crate::Work;

pub(super) fn gone(case: &Case<'_>) -> Option<Verdict> {
    let vanished = case.vanished();
    let (_, kind) = *vanished.first()?;
    let waiting = case.ranks_where(|rank| {
        rank.work() == Some(Work::Waits) || inside_calls::waits_in_call(case, rank).is_some()
    });
    if waiting.is_empty() {
        return None;
    }
    let mut evidence = vec![format!("nothing was launched for {:.1} s", case.seconds)];
    evidence.extend(vanished.iter().take(MAX_SENTENCES).filter_map(|(rank, _)| case.absent_sentence(*rank)));
    let what = if kind == Kind::Gone { "a process that is gone" } else { "a rank that has left" };
    evidence.push(format!("{} for {what}", subject(&waiting, ["waits", "wait"])));
    evidence.extend(case.gpu_sentences());
    evidence.extend(case.exited_sentence());
    Some(case.stuck(kind, vanished.into_iter().map(|(rank, _)| rank), evidence))
}

#[cfg(test)]
mod tests {
    use crate::{
        ProcessReport, ProcessState,
        absent::{AbsentRank, Place},
        rank_gpu::Work,
        verdict::{
            State, judge,
            tests::made::{check, over_nvlink},
        },
    };

    #[test]
    fn a_process_that_is_gone_is_the_cause_while_a_gpu_waits() {
        let mut ranks = [0, 1, 3].map(|number| over_nvlink(number, 4, Some(Work::Waits)));
        ranks[0].absent = vec![AbsentRank { rank: 2, place: Place::Gone, pid: None, peer: None }];
        check(
            &judge(&ranks, &[]),
            State::Stuck,
            &[2],
            &[0, 1, 3],
            "rank 2 was on this host, and no live process is that rank",
        );
        // Nobody waits: a rank that has done all its work has left.
        let mut ranks = [0, 1, 3].map(|number| over_nvlink(number, 4, Some(Work::Idle)));
        ranks[0].absent = vec![AbsentRank { rank: 2, place: Place::Gone, pid: None, peer: None }];
        check(
            &judge(&ranks, &[]),
            State::Healthy,
            &[],
            &[],
            "rank 2 was on this host, and no live process is that rank",
        );
        // From a container not all processes can be seen; but one that was given has exited.
        let mut ranks = [0, 1, 3].map(|number| over_nvlink(number, 4, Some(Work::Waits)));
        ranks[0].absent = vec![AbsentRank { rank: 2, place: Place::Unseen, pid: None, peer: None }];
        check(
            &judge(&ranks, &[]),
            State::Unknown,
            &[],
            &[],
            "no process that can be seen from here is that rank",
        );
        let exited = ProcessReport { pid: 102, state: ProcessState::Exited, ..ProcessReport::default() };
        check(&judge(&ranks, &[exited]), State::Stuck, &[2], &[0, 1, 3], "process 102 has exited");
        // The process is there and was not read, so that it may wait, too.
        let mut ranks = [0, 1, 3].map(|number| over_nvlink(number, 4, Some(Work::Waits)));
        ranks[0].absent = vec![AbsentRank { rank: 2, place: Place::Here, pid: Some(77), peer: None }];
        check(&judge(&ranks, &[]), State::Unknown, &[], &[], "rank 2 is process 77, which was not read");
    }
}
