//! Adds to a verdict the place of each culprit in its program: the Python line of its main thread.

use super::{
    Verdict,
    case::{Case, MAX_SENTENCES},
};
use crate::{dump_report::ProcessReport, python};

/// Adds the line to the sentence about each culprit, or a sentence of its own if there is none.
pub(super) fn add(case: &Case<'_>, verdict: &mut Verdict) {
    for number in verdict.culprits.iter().take(MAX_SENTENCES) {
        let process = case.ranks.get(number).and_then(|rank| case.process_of(rank));
        let Some(place) = process.and_then(place_of) else { continue };
        let about = format!("rank {number} ");
        match verdict.evidence.iter_mut().find(|sentence| sentence.starts_with(&about)) {
            Some(sentence) => sentence.extend(["; its main thread is at ", &place]),
            None => verdict.evidence.push(format!("the main thread of rank {number} is at {place}")),
        }
    }
}

/// Describes where a process's main thread is.
pub(super) fn place_of(process: &ProcessReport) -> Option<String> {
    python::place(process.python.as_ref()?.main_thread()?)
}
