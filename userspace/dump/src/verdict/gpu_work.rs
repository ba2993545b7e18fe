//! Judges communicators over NVLink or shared memory whose ranks all launched the same number of collectives:
//! the work of their GPUs tells whether the last one goes on.

use std::collections::BTreeSet;

use super::{Case, Kind, State, Verdict, disagreement::minority, named, subject};
use crate::Work;
use flow::text::joined;

/// Judges a communicator of which a GPU has stopped with an error, and something is not finished.
pub(super) fn gpu_error(case: &Case<'_>) -> Option<Verdict> {
    let stopped = case.ranks_where(|rank| rank.gpu.as_ref().is_some_and(|gpu| !gpu.fatal_xids.is_empty()));
    let is_open = case.has_ops_in_flight()
        || !case.behind().0.is_empty()
        || case.ranks.values().any(|rank| rank.work() == Some(Work::Waits));
    if stopped.is_empty() || !is_open {
        return None;
    }
    let mut evidence = vec![format!("nothing moved for {:.1} s", case.seconds)];
    for (rank, gpu) in stopped.iter().filter_map(|rank| Some((rank, case.ranks.get(rank)?.gpu.as_ref()?))) {
        let numbers = joined(&gpu.fatal_xids, ", ");
        evidence.push(format!("the GPU of rank {rank} has stopped with Xid {numbers}, by the kernel's log"));
    }
    Some(case.stuck(Kind::GpuError, stopped, evidence))
}

pub(super) fn gpu_work(case: &Case<'_>) -> Option<Verdict> {
    let with = |wanted: Work| -> BTreeSet<u32> {
        case.ranks_where(|rank| rank.work() == Some(wanted)).into_iter().collect()
    };
    let (idle, waits, computes, moves) =
        (with(Work::Idle), with(Work::Waits), with(Work::Computes), with(Work::Moves));
    let seconds = case.seconds;
    let healthy = |what: String| Some(Verdict::new(State::Healthy, what).with(case.absent_sentences()));
    if !moves.is_empty() {
        return healthy(format!("it moves: the GPUs of {} moved data over NVLink", named(&moves)));
    }
    if idle.len() + waits.len() + computes.len() < case.ranks.len() {
        return None; // of some GPU it is not known
    }
    if waits.is_empty() {
        let what = if computes.is_empty() {
            "no GPU runs a kernel: all that was launched has ended"
        } else {
            "no GPU waits: those that run kernels use their memory, as NCCL's do not while they wait"
        };
        return healthy(format!("{what}, for {seconds:.1} s: the job waits elsewhere"));
    }
    if waits.iter().all(|rank| case.is_explained(*rank)) {
        return healthy(format!(
            "nothing is known to be pending in this communicator: {} in another one",
            subject(&waits, ["waits", "wait"])
        ));
    }
    let mut evidence = vec![format!(
        "all ranks launched the same number of collectives, and none launched more for {seconds:.1} s; the GPU \
         of {} runs a kernel that moves nothing, as one of NCCL's that waits",
        named(&waits)
    )];
    let finish = |state, kind: Option<Kind>, culprits: BTreeSet<u32>, mut evidence: Vec<String>| {
        evidence.extend(case.gpu_sentences());
        evidence.extend(case.absent_sentences());
        evidence.extend(case.missing_sentence());
        let victims = waits.difference(&culprits).filter(|_| kind.is_some()).copied().collect();
        Some(Verdict { state, kind, victims, culprits: culprits.into_iter().collect(), evidence })
    };
    if !computes.is_empty() {
        let compute = subject(&computes, ["computes", "compute"]);
        evidence.push(format!("the GPU of {compute}: its memory is in use, and NVLink is still"));
        return finish(State::Waiting, Some(Kind::Computing), computes, evidence);
    }
    if idle.is_empty() {
        evidence.push(
            "cannot tell which: a GPU may run another kernel that uses no memory, a link may stand still, or \
             the last collective may differ in size or in its kind"
                .to_owned(),
        );
        return finish(State::Unknown, None, BTreeSet::new(), evidence);
    }
    let sides = [(Work::Idle, idle.clone()), (Work::Waits, waits.clone())].into();
    let fewer = minority(&sides);
    if case.n_missing() > 0 {
        evidence.push(format!("the GPU of {} runs nothing", named(&idle)));
        return finish(State::Unknown, None, BTreeSet::new(), evidence);
    }
    evidence.push(format!(
        "the GPU of {} runs nothing: either its kernel has not begun, because its stream waits for something \
         else, or the last collective has ended there, because it differs from the others' in size or in its \
         kind",
        named(&idle)
    ));
    let kind = if fewer == idle { Kind::GpuIdle } else { Kind::OtherOperation };
    finish(State::Stuck, Some(kind), fewer, evidence)
}

#[cfg(test)]
mod tests {
    use crate::{
        CommunicatorReport, RankReport,
        rank_gpu::Work,
        verdict::{
            Kind, State, judge, judge_all,
            tests::made::{check, over_nvlink},
        },
    };

    fn ranks(work: [Work; 4]) -> Vec<RankReport> {
        (0..4).zip(work).map(|(number, work)| over_nvlink(number, 4, Some(work))).collect()
    }

    #[test]
    fn a_gpu_that_computes_while_others_wait_is_what_they_wait_for() {
        let ranks = ranks([Work::Waits, Work::Computes, Work::Waits, Work::Waits]);
        let verdict = judge(&ranks, &[]);
        check(&verdict, State::Waiting, &[1], &[0, 2, 3], "the GPU of rank 1 computes");
        assert_eq!(verdict.kind, Some(Kind::Computing));
    }

    #[test]
    fn gpus_that_do_nothing_or_compute_wait_for_nobody() {
        let idle = ranks([Work::Idle; 4]);
        check(&judge(&idle, &[]), State::Healthy, &[], &[], "no GPU runs a kernel");
        let computing = ranks([Work::Computes, Work::Idle, Work::Computes, Work::Computes]);
        check(&judge(&computing, &[]), State::Healthy, &[], &[], "no GPU waits");
        let moving = ranks([Work::Moves, Work::Waits, Work::Moves, Work::Moves]);
        check(&judge(&moving, &[]), State::Healthy, &[], &[], "moved data over NVLink");
        // Unknown work of another GPU changes nothing.
        let mut one = moving;
        one[1].gpu = None;
        check(&judge(&one, &[]), State::Healthy, &[], &[], "moved data over NVLink");
    }

    #[test]
    fn where_two_explanations_are_left_both_are_named() {
        let idle = ranks([Work::Waits, Work::Waits, Work::Idle, Work::Waits]);
        let verdict = judge(&idle, &[]);
        check(&verdict, State::Stuck, &[2], &[0, 1, 3], "either its kernel has not begun");
        let alone = ranks([Work::Idle, Work::Waits, Work::Idle, Work::Idle]);
        check(&judge(&alone, &[]), State::Stuck, &[1], &[], "differs from the others' in size");
        let all = ranks([Work::Waits; 4]);
        check(&judge(&all, &[]), State::Unknown, &[], &[], "cannot tell which");
        // Where the driver does not tell, nothing is guessed.
        let mut one = ranks([Work::Waits, Work::Waits, Work::Idle, Work::Waits]);
        one[3].gpu = None;
        check(&judge(&one, &[]), State::Unknown, &[], &[], "only the GPU knows");
    }

    #[test]
    fn what_gpus_do_while_another_communicator_of_theirs_moves_says_nothing_of_this_one() {
        let communicator =
            |ranks: Vec<RankReport>| CommunicatorReport { ranks, ..CommunicatorReport::default() };
        let still = ranks([Work::Waits, Work::Waits, Work::Idle, Work::Waits]);
        let mut moving = still.clone();
        let judged = |moving: Vec<RankReport>| {
            let mut all = [communicator(still.clone()), communicator(moving)];
            judge_all(&mut all, &[]);
            all[0].verdict.clone()
        };
        assert_eq!(judged(moving.clone()).culprits, [2]);
        moving[1].motion.counters_moved = true;
        check(
            &judged(moving),
            State::Healthy,
            &[],
            &[],
            "nothing is known to be pending in this \
                                                          communicator",
        );
    }

    #[test]
    fn a_gpu_that_stopped_with_an_error_is_named() {
        let mut ranks = ranks([Work::Waits, Work::Waits, Work::Idle, Work::Waits]);
        ranks[2].gpu.as_mut().unwrap().fatal_xids = vec![79];
        let verdict = judge(&ranks, &[]);
        check(&verdict, State::Stuck, &[2], &[0, 1, 3], "has stopped with Xid 79");
        assert_eq!(verdict.kind, Some(Kind::GpuError));
    }
}
