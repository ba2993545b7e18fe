//! Tells stuck from waiting: a rank that others wait for and that makes progress elsewhere is not stuck.

use super::{Case, Kind, MAX_SENTENCES, State, Verdict, common_calls};
use crate::Work;

/// Returns the verdict as it is, or `waiting` instead of `stuck`, if each rank that is waited for still does
/// something.
pub(super) fn or_stuck(case: &Case<'_>, mut verdict: Verdict) -> Verdict {
    let is_absence = verdict.kind.is_some_and(Kind::is_absence);
    if verdict.state != State::Stuck || !is_absence || verdict.culprits.is_empty() {
        return verdict;
    }
    let progress: Option<Vec<String>> = verdict
        .culprits
        .iter()
        .map(|rank| Some(format!("rank {rank} makes progress elsewhere: {}", progress_of(case, *rank)?)))
        .collect();
    if let Some(sentences) = progress {
        verdict.state = State::Waiting;
        verdict.evidence.extend(sentences.into_iter().take(MAX_SENTENCES));
    }
    verdict
}

/// Describes the progress of a rank, if it makes any.
fn progress_of(case: &Case<'_>, number: u32) -> Option<String> {
    let Some(rank) = case.ranks.get(&number) else {
        let process = case.stand_in(number).filter(|process| !process.state.is_halted())?;
        return process.activity.as_ref()?.progress(false);
    };
    if rank.process_state.is_halted() {
        return None;
    }
    let work = rank.work();
    if let Some(Work::Computes | Work::Moves) = work {
        let gpu = rank.gpu.as_ref()?;
        return Some(format!("its GPU computes or moves data ({})", gpu.describe()));
    }
    // It is not known which of several ranks in one process the time is of.
    if case.ranks.values().filter(|other| other.process() == rank.process()).count() > 1 {
        return None;
    }
    let process = case.process_of(rank)?;
    // A thread that waits for its GPU spins (cudaStreamSynchronize), and so does one that waits in a call
    // that all ranks must make.
    let spins = work == Some(Work::Waits) || common_calls::described(process).is_some();
    process.activity.as_ref()?.progress(spins)
}

#[cfg(test)]
mod tests {
    use crate::{
        ProcessReport,
        activity::Activity,
        rank_gpu::Work,
        verdict::{
            State, judge,
            tests::made::{check, over_nvlink, rank, waiting},
        },
    };

    fn busy(pid: u32, cpu: f64) -> ProcessReport {
        let activity = Activity { seconds: 1.0, cpu_seconds: Some(cpu), ..Activity::default() };
        ProcessReport { pid, activity: Some(activity), ..ProcessReport::default() }
    }

    #[test]
    fn a_rank_that_has_not_joined_and_computes_is_waited_for_and_nobody_is_stuck() {
        let ranks = [waiting(0), rank(1, 4, Vec::new()), waiting(2), waiting(3)];
        let verdict = judge(&ranks, &[busy(101, 0.9)]);
        check(&verdict, State::Waiting, &[1], &[0, 2, 3], "it ran on the CPU for 0.9 of 1.0 s");
        let verdict = judge(&ranks, &[busy(101, 0.01)]);
        check(&verdict, State::Stuck, &[1], &[0, 2, 3], "rank 1 has not joined");
        // Another rank's time does not count, nor that of a thread that spins for its GPU.
        check(&judge(&ranks, &[busy(102, 0.9)]), State::Stuck, &[1], &[0, 2, 3], "not joined");
        let mut ranks = ranks;
        ranks[1].gpu = over_nvlink(1, 4, Some(Work::Waits)).gpu;
        check(&judge(&ranks, &[busy(101, 0.9)]), State::Stuck, &[1], &[0, 2, 3], "not joined");
        ranks[1].gpu = over_nvlink(1, 4, Some(Work::Computes)).gpu;
        check(&judge(&ranks, &[]), State::Waiting, &[1], &[0, 2, 3], "its GPU computes");
    }
}
