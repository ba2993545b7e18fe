//! Adds to a verdict the place of each culprit in its program: the Python line of its main thread, and a call
//! of NCCL's that all ranks must make.

use super::{Case, MAX_SENTENCES, Verdict, common_calls};
use crate::ProcessReport;
use flow::text::joined;

/// Adds the line to the sentence about each culprit, or a sentence of its own if there is none.
pub(super) fn add(case: &Case<'_>, verdict: &mut Verdict) {
    for number in verdict.culprits.iter().take(MAX_SENTENCES) {
        let process = case.ranks.get(number).and_then(|rank| case.process_of(rank));
        let about = format!("rank {number} ");
        let call = process.and_then(common_calls::described).map(|call| format!("it is itself in {call}"));
        let whereabouts = process.and_then(ProcessReport::whereabouts).into_iter().chain(call);
        let whereabouts = joined(whereabouts, "; ");
        if whereabouts.is_empty() {
            continue;
        }
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
