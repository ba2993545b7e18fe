//! Judges communicators without ops in flight whose ranks all launched the same number of collectives.

use super::{
    Kind, State, Verdict,
    case::{Case, named},
    gpu_work::gpu_work,
};
use crate::{dump_report::ProcessState, rank_gpu::Work};

pub(super) fn stopped(case: &Case<'_>) -> Option<Verdict> {
    let stopped = case.ranks_where(|rank| rank.process_state == ProcessState::Stopped);
    let waiting = case.ranks_where(|rank| rank.work() == Some(Work::Waits) && !stopped.contains(&rank.rank));
    (!stopped.is_empty()).then(|| {
        if !waiting.is_empty() {
            let what =
                format!("the GPU of {} waits, and nothing moved for {:.1} s", named(&waiting), case.seconds);
            let mut verdict = Verdict::new(State::Stuck, what);
            case.add_stopped(&mut verdict);
            return Verdict { kind: Some(Kind::Stopped), culprits: stopped, victims: waiting, ..verdict };
        }
        let mut verdict = Verdict { state: State::Unknown, ..idle(case) };
        case.add_stopped(&mut verdict);
        verdict
    })
}

/// Judges communicators that launched collectives whose data may be in flight where the host does not see
/// them.
pub(super) fn over_nvlink(case: &Case<'_>) -> Option<Verdict> {
    let unseen = case.ranks_where(|rank| rank.proxy.carries_rings == Some(false));
    let (_, most) = case.behind();
    (!unseen.is_empty() && most > 0).then(|| {
        if let Some(verdict) = gpu_work(case) {
            return verdict;
        }
        Verdict::cannot_tell(format_args!(
            "the data of {} go over NVLink or shared memory, where only the GPU knows what is in flight; all \
             ranks launched the same number of collectives, and none launched more for {:.1} s",
            named(&unseen),
            case.seconds
        ))
        .with(case.gpu_sentences())
        .with(case.absent_sentences())
    })
}

/// Returns the verdict if no rule has another one.
pub(super) fn idle(case: &Case<'_>) -> Verdict {
    let (ranks, seconds) = (case.all_ranks(), case.seconds);
    let sentence = format!("no NCCL op in flight on {ranks} for {seconds:.1} s: the job waits elsewhere");
    Verdict::new(State::Healthy, sentence)
}
