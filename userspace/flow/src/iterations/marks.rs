//! Where iterations begin.

use super::finder::{Collective, Period};

/// The beginning of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its first collective.
    pub first: Collective,
    /// Where it stands in the sequence.
    pub at: usize,
    /// When the collective after its last one came.
    pub next_ns: Option<u64>,
    /// Iterations before it since the first mark. One that was disturbed has no mark of its own.
    pub number: u64,
}

/// The beginnings of iterations in a sequence. The last of them has all of its collectives.
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
            // With half an iteration more, it was one that something came into.
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
