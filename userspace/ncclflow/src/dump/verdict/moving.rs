//! Communicators of which something changed between the readings.

use super::{
    State, Verdict,
    case::{Case, named},
};

pub(super) fn moving(case: &Case<'_>) -> Option<Verdict> {
    let stepping = case.ranks_where(|rank| rank.motion.steps_moved);
    let counting = case.ranks_where(|rank| rank.motion.counters_moved);
    let seconds = case.seconds;
    if !stepping.is_empty() {
        let sentence = format!("it moves: ops in flight of {} moved within {seconds:.1} s", named(&stepping));
        return Some(Verdict::new(State::Healthy, sentence));
    }
    if counting.is_empty() {
        return None;
    }
    if case.has_ops_in_flight() {
        let sentence = format!(
            "cannot tell, because {} launched more while no op in flight moved for {seconds:.1} s: read \
             again with a longer --interval",
            named(&counting)
        );
        return Some(Verdict::new(State::Unknown, sentence));
    }
    let sentence = format!("it moves: {} launched more within {seconds:.1} s", named(&counting));
    Some(Verdict::new(State::Healthy, sentence))
}
