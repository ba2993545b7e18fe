//! Judges communicators without ops in flight whose ranks all launched the same number of collectives.

use super::{Case, State, Verdict, gpu_work::gpu_work, named};
use crate::{ProcessState, Work};

/// Judges communicators of which a process runs no code of its own: it is stopped, frozen or dying.
pub(super) fn halted(case: &Case<'_>) -> Option<Verdict> {
    let stopped = case.ranks_where(|rank| rank.process_state.is_halted());
    let waiting = case.ranks_where(|rank| rank.work() == Some(Work::Waits) && !stopped.contains(&rank.rank));
    (!stopped.is_empty()).then(|| {
        if !waiting.is_empty() {
            let what =
                format!("the GPU of {} waits, and nothing moved for {:.1} s", named(&waiting), case.seconds);
            return case.held_up(what, stopped, waiting);
        }
        // Nobody waits for it yet, and it does not go on: one that ends, or gets no processor, may.
        let is_held = |state| matches!(state, ProcessState::Stopped | ProcessState::Frozen);
        let held = case.ranks_where(|rank| is_held(rank.process_state));
        if !held.is_empty() {
            let others = case.ranks_where(|rank| !stopped.contains(&rank.rank));
            let what =
                format!("no op was in flight for {:.1} s, and the communicator cannot go on:", case.seconds);
            return case.held_up(what, held, others);
        }
        let mut verdict = Verdict { state: State::Unknown, ..idle(case) };
        case.add_halted(&mut verdict);
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
            "the data of {} go over NVLink or shared memory, where only the GPU knows what is in flight; {}, \
             and none launched more for {:.1} s",
            named(&unseen),
            case.launched_alike(),
            case.seconds
        ))
        .with(case.gpu_sentences())
        .with(case.absent_sentences())
    })
}

/// Returns the verdict if no rule has another one.
pub(super) fn idle(case: &Case<'_>) -> Verdict {
    let nothing = format!("no NCCL op in flight on {} for {:.1} s", case.all_ranks(), case.seconds);
    if case.n_missing() == 0 {
        return Verdict::new(State::Healthy, format!("{nothing}: the job waits elsewhere"));
    }
    // They may have launched more, and wait for these.
    Verdict::cannot_tell(format_args!("the others were not read: {nothing}")).with(case.missing_sentence())
}
