//! Adds to a verdict the place of each culprit in its program: the Python line of its main thread.

use super::{
    Verdict,
    case::{Case, MAX_SENTENCES},
};
use crate::dump::{dump_report::ProcessReport, python, rank_report::RankReport};

/// Adds the line to the sentence about each culprit, or a sentence of its own if there is none.
pub(super) fn add(case: &Case<'_>, verdict: &mut Verdict) {
    for number in verdict.culprits.iter().take(MAX_SENTENCES) {
        let Some(place) = case.ranks.get(number).and_then(|rank| place(case, rank)) else { continue };
        let about = format!("rank {number} ");
        match verdict.evidence.iter_mut().find(|sentence| sentence.starts_with(&about)) {
            Some(sentence) => sentence.extend(["; its main thread is at ", &place]),
            None => verdict.evidence.push(format!("the main thread of rank {number} is at {place}")),
        }
    }
}

fn place(case: &Case<'_>, rank: &RankReport) -> Option<String> {
    place_of(case.processes.iter().find(|process| process.is_of(rank))?)
}

/// Describes where a process's main thread is.
pub(super) fn place_of(process: &ProcessReport) -> Option<String> {
    python::place(process.python.as_ref()?.main_thread()?)
}
