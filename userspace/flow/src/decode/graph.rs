//! Records of CUDA graphs.

use super::{Origin, RecordView, Result, record::if_readable};
use crate::wire::{GraphMoment, GraphSpans, Span};

/// A place at which a function leaves its answer, and the word there; `None`: it could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub at: u64,
    pub word: Option<u64>,
}

/// A call that deals with a CUDA graph, at its beginning. What the function does not have is 0 or `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphEvent {
    pub origin: Origin,
    pub moment: GraphMoment,
    pub stream: u64,
    pub graph: u64,
    pub capture: u64,
    pub exec: u64,
    pub plan: u64,
    pub comm: Option<u64>,
    /// Place of the answer of this call.
    pub answer: Option<Answer>,
    /// Answers of earlier calls: of the last one of this thread, and of the process.
    pub answered: [Option<Answer>; 2],
}

pub(super) fn graph(spans: &GraphSpans, record: &RecordView<'_>) -> Result<GraphEvent> {
    let number = |span: Option<&Span>| record.optional(span).map(Option::unwrap_or_default);
    let answer = |[at, word]: &[Span; 2]| {
        Ok(Answer { at: record.unsigned(at)?, word: if_readable(record.unsigned(word))? })
    };
    let mut answered = [None; 2];
    for (place, spans) in answered.iter_mut().zip(spans.answered.iter().flatten()) {
        *place = Some(answer(spans)?).filter(|answer| answer.at != 0);
    }
    Ok(GraphEvent {
        origin: record.origin(),
        moment: spans.moment,
        stream: number(spans.stream.as_ref())?,
        graph: number(spans.graph.as_ref())?,
        capture: number(spans.capture.as_ref())?,
        exec: number(spans.exec.as_ref())?,
        plan: number(spans.plan.as_ref())?,
        comm: if_readable(record.optional(spans.comm.as_ref()))?.flatten(),
        answer: spans.answer.as_ref().map(answer).transpose()?,
        answered,
    })
}
