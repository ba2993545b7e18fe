//! Judges communicators of which something changed between the readings.

use super::{Case, State, Verdict, named};
use crate::ProcessState;

pub(super) fn moving(case: &Case<'_>) -> Option<Verdict> {
    let stepping = case.ranks_where(|rank| rank.motion.steps_moved);
    let counting = case.ranks_where(|rank| rank.motion.counters_moved);
    let seconds = case.seconds;
    // One that gets no processor for a second can have moved before, and comes again.
    let halted = case
        .ranks_where(|rank| rank.process_state.is_halted() && rank.process_state != ProcessState::Starved);
    let moves = if !stepping.is_empty() {
        format!("ops in flight of {} moved", named(&stepping))
    } else if counting.is_empty() {
        return None;
    } else if case.has_ops_in_flight() && halted.is_empty() {
        return Some(Verdict::cannot_tell(format_args!(
            "{} launched more while no op in flight moved for {seconds:.1} s: read again with a longer \
             --interval",
            named(&counting)
        )));
    } else {
        format!("{} launched more", named(&counting))
    };
    if halted.is_empty() {
        return Some(Verdict::new(State::Healthy, format!("it moves: {moves} within {seconds:.1} s")));
    }
    // It moved until then.
    let victims = case.ranks_where(|rank| !halted.contains(&rank.rank));
    Some(case.held_up(format!("{moves} within {seconds:.1} s, and cannot go on:"), halted, victims))
}
