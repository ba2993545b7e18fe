//! Judges communicators over NVLink or shared memory whose ranks all launched the same number of collectives:
//! the work of their GPUs tells whether the last one goes on.

use std::collections::BTreeSet;

use super::{Case, Kind, State, Verdict, disagreement::minority, named, subject};
use crate::{RankGpu, Work};
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
        "{}, and none launched more for {seconds:.1} s; the GPU of {} runs a kernel that moves nothing, as one of \
         NCCL's that waits",
        case.launched_alike(),
        named(&waits)
    )];
    let finish = |state, kind: Option<Kind>, culprits: BTreeSet<u32>, mut evidence: Vec<String>| {
        evidence.extend(case.gpu_sentences());
        evidence.extend(case.absent_sentences());
        evidence.extend(case.missing_sentence());
        let victims = waits.difference(&culprits).filter(|_| kind.is_some()).copied().collect();
        let culprits = culprits.into_iter().collect();
        Some(Verdict { state, kind, victims, culprits, evidence, known_bug: None })
    };
    if !computes.is_empty() {
        let compute = subject(&computes, ["computes", "compute"]);
        evidence.push(format!("the GPU of {compute}: its memory is in use, and NVLink is still"));
        return finish(State::Waiting, Some(Kind::Computing), computes, evidence);
    }
    let foreign = other_kernels(case);
    if idle.is_empty() && !foreign.is_empty() {
        evidence.extend(case.residency_sentences());
        let run = subject(&foreign, ["runs", "run"]);
        evidence.push(format!("the GPU of {run} a kernel that cannot be the one of NCCL's"));
        return finish(State::Waiting, Some(Kind::OtherKernel), foreign, evidence);
    }
    if idle.is_empty() {
        evidence.extend(case.residency_sentences());
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

/// Returns the ranks whose GPU runs a kernel that cannot be the one of NCCL's in which the others wait: it is
/// smaller than any of NCCL's; or, where the processes have no other communicator, it is of another shape
/// than the one of most ranks. None where a GPU does not tell, or where all would be.
fn other_kernels(case: &Case<'_>) -> BTreeSet<u32> {
    let gpus: Vec<(u32, &RankGpu)> =
        case.ranks.iter().filter_map(|(number, rank)| Some((*number, rank.gpu.as_ref()?))).collect();
    let is_told = |(_, gpu): &(u32, &RankGpu)| gpu.residency.is_some();
    let too_small: BTreeSet<u32> =
        gpus.iter().filter(|(_, gpu)| gpu.is_too_small_for_nccl()).map(|(rank, _)| *rank).collect();
    let compared = gpus.len() == case.ranks.len() && gpus.iter().all(is_told);
    if !too_small.is_empty() || !compared || !gpus.iter().all(|(_, gpu)| gpu.is_only_communicator) {
        return if too_small.len() < case.ranks.len() { too_small } else { BTreeSet::new() };
    }
    let unlike = |(_, one): &&(u32, &RankGpu)| -> BTreeSet<u32> {
        gpus.iter().filter(|(_, other)| !one.has_kernel_like(other)).map(|(rank, _)| *rank).collect()
    };
    let most = gpus.iter().map(|gpu| unlike(&gpu)).min_by_key(BTreeSet::len).unwrap_or_default();
    if 2 * most.len() < gpus.len() { most } else { BTreeSet::new() }
}

#[cfg(test)]
mod tests {
    use inspect::gpu::Residency;

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
    fn a_kernel_of_the_program_s_own_is_named_and_nobody_where_kernels_are_alike() {
        let with = |shapes: [(f64, f64); 4], is_only_communicator| {
            let mut ranks = ranks([Work::Waits; 4]);
            for (rank, (multiprocessors_percent, warps_percent)) in ranks.iter_mut().zip(shapes) {
                let gpu = rank.gpu.as_mut().unwrap();
                gpu.residency = Some(Residency { multiprocessors_percent, warps_percent });
                gpu.is_only_communicator = is_only_communicator;
            }
            judge(&ranks, &[])
        };
        let (waits, spins, other) = ((18.18, 4.83), (0.76, 0.0118), (90.0, 22.0));
        // One warp that spins is never NCCL's.
        let verdict = with([waits, spins, waits, waits], false);
        check(
            &verdict,
            State::Waiting,
            &[1],
            &[0, 2, 3],
            "0.8 % of its multiprocessors, with 1 warp on each",
        );
        assert_eq!(verdict.kind, Some(Kind::OtherKernel));
        // Another shape is, where several communicators can have kernels, no proof.
        check(
            &with([waits, other, waits, waits], true),
            State::Waiting,
            &[1],
            &[0, 2, 3],
            "cannot be the one",
        );
        check(&with([waits, other, waits, waits], false), State::Unknown, &[], &[], "cannot tell which");
        check(&with([waits, other, waits, other], true), State::Unknown, &[], &[], "cannot tell which");
        check(&with([waits; 4], true), State::Unknown, &[], &[], "cannot tell which");
        check(&with([spins; 4], true), State::Unknown, &[], &[], "cannot tell which");
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
