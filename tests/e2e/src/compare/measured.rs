//! Are the measured times and sizes of messages those that NCCL's profiler interface tells?
//!
//! ncclflow stamps a hook at its entry and the plugin is called inside it, so each of ours must come before
//! its counterpart and after the one before.

use super::{Findings, ops::PathOp};
use crate::{
    direction::Direction,
    tracer::{FlowStep, Measured},
    truth::plugin::{ProxyOp, Step},
};

/// Counts messages. Ops that were not measured are passed over.
pub(super) fn compare(findings: &mut Findings, name: &str, our: &PathOp<'_>, their: &ProxyOp) {
    let measured: Vec<(&FlowStep, &Measured)> = our
        .steps
        .iter()
        .map(|step| (*step, &step.measured))
        .filter(|(_, measured)| **measured != Measured::default())
        .collect();
    if measured.is_empty() {
        return;
    }
    if measured.len() != their.steps.len() {
        findings.complain(format!("{name}: {} messages measured, {} ran", measured.len(), their.steps.len()));
    }
    for ((step, measured), their) in measured.into_iter().zip(&their.steps) {
        let problem = problem(step, measured, their);
        findings.compare(problem.is_none(), || {
            format!(
                "{name} step {}: {}: {measured:?} against {their:?}",
                step.step,
                problem.unwrap_or_default()
            )
        });
    }
}

/// What is wrong with a message, if anything.
fn problem(step: &FlowStep, ours: &Measured, theirs: &Step) -> Option<&'static str> {
    let sends = step.direction == Direction::Send;
    // Our name of each transition, NCCL's number of the state, in the order in which they come; whether waits
    // need it.
    let transitions = if sends {
        [(ours.start, 8, false), (ours.ready, 20, true), (ours.sent, 9, true)]
    } else {
        [(ours.posted, 10, false), (ours.arrived, 11, true), (ours.handed, 12, false)]
    };
    let (Some(slot_free), Some(end), Some(stop)) = (ours.slot_free, ours.end, theirs.stop) else {
        return Some("not seen from beginning to end");
    };
    if slot_free > theirs.start {
        return Some("it began before its slot is said to be free");
    }
    if end > stop {
        return Some("the hook is stamped after what it calls");
    }
    let (mut before, mut their_before) = (slot_free, theirs.start);
    for (time, state, needed) in transitions {
        let (Some(time), Some(their)) = (time, theirs.reached(state)) else {
            if time.is_none() && !needed {
                continue;
            }
            return Some("a transition was not seen");
        };
        if time < before || time < their_before || time > their.t {
            return Some("a transition is out of order");
        }
        (before, their_before) = (time, their.t);
    }
    if end < before || end < their_before {
        return Some("the end comes before the last transition");
    }
    let telling = if sends { 9 } else { 11 };
    if ours.bytes != theirs.trans_size_at(telling) {
        return Some("another size");
    }
    let exact = step.bytes_kind == crate::tracer::BytesKind::Exact;
    (exact && ours.bytes != Some(step.bytes)).then_some("the measured size is not the planned one")
}
