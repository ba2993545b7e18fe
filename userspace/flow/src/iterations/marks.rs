//! Beginnings of iterations in a sequence of collectives.

use super::finder::{Collective, Period};

/// The beginning of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// First collective of the iteration.
    pub first: Collective,
    /// Index of that collective in the sequence.
    pub at: usize,
    /// When the collective after the iteration's last one came.
    pub next_ns: Option<u64>,
    /// Iterations before this one since the first mark. A disturbed iteration counts, but has no mark.
    pub number: u64,
}

/// Returns the beginnings of iterations in a sequence; each iteration has all of its collectives there.
pub fn marks(collectives: &[Collective], period: &Period) -> Vec<Mark> {
    let length = period.collectives().max(1);
    let (mut marks, mut at, mut last, mut number) = (Vec::new(), 0, None::<usize>, 0);
    while let Some(rest) = collectives.get(at..) {
        let Some(first) = rest.first() else { break };
        if !period.is_at(rest) {
            at += 1;
            continue;
        }
        if let Some(last) = last {
            // Rounded: other collectives came in between, or an iteration was disturbed.
            let passed = (at - last + length / 2) / length;
            number += passed.max(1) as u64;
        }
        let next_ns = rest.get(length).map(|next| next.ts_ns);
        marks.push(Mark { first: *first, at, next_ns, number });
        last = Some(at);
        at += length;
    }
    marks
}
