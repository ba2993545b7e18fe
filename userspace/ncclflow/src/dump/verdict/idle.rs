//! Communicators without ops in flight whose ranks all launched the same number of collectives.

use super::{
    State, Verdict,
    case::{Case, named},
};
use crate::dump::dump_report::ProcessState;

pub(super) fn stopped(case: &Case<'_>) -> Option<Verdict> {
    let is_stopped = case.ranks.values().any(|rank| rank.process_state == ProcessState::Stopped);
    is_stopped.then(|| {
        let mut verdict = Verdict { state: State::Unknown, ..idle(case) };
        case.add_stopped(&mut verdict);
        verdict
    })
}

/// Collectives were launched, and their data may be in flight where the host does not see it.
pub(super) fn over_nvlink(case: &Case<'_>) -> Option<Verdict> {
    let unseen = case.ranks_where(|rank| rank.proxy.carries_rings == Some(false));
    let (_, most) = case.behind();
    (!unseen.is_empty() && most > 0).then(|| {
        Verdict::cannot_tell(format_args!(
            "the data of {} go over NVLink or shared memory, where only the GPU knows what is in flight; all \
             ranks launched the same number of collectives, and none launched more for {:.1} s",
            named(&unseen),
            case.seconds
        ))
    })
}

/// The verdict if no rule has another one.
pub(super) fn idle(case: &Case<'_>) -> Verdict {
    let (ranks, seconds) = (case.all_ranks(), case.seconds);
    let sentence = format!("no NCCL op in flight on {ranks} for {seconds:.1} s: the job waits elsewhere");
    Verdict::new(State::Healthy, sentence)
}
