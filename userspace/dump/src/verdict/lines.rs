//! Adds to a verdict the place of each culprit in its program: the Python line of its main thread.

use super::{Case, MAX_SENTENCES, Verdict};
use crate::ProcessReport;

/// Adds the line to the sentence about each culprit, or a sentence of its own if there is none.
pub(super) fn add(case: &Case<'_>, verdict: &mut Verdict) {
    for number in verdict.culprits.iter().take(MAX_SENTENCES) {
        let process = case.ranks.get(number).and_then(|rank| case.process_of(rank));
        let Some(whereabouts) = process.and_then(ProcessReport::whereabouts) else { continue };
        let about = format!("rank {number} ");
        match verdict.evidence.iter_mut().find(|sentence| sentence.starts_with(&about)) {
            Some(sentence) => sentence.extend(["; ", &whereabouts]),
            None => verdict.evidence.push(format!("of rank {number}: {whereabouts}")),
        }
    }
}

/// Returns the end of a sentence about a process: where its main thread is, if that is known.
pub(super) fn main_thread_at(process: &ProcessReport) -> String {
    process.whereabouts().map_or_else(String::new, |whereabouts| format!("; {whereabouts}"))
}
