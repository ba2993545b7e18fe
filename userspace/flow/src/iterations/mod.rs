//! Training iterations, found from the collectives that recur.
//!
//! Nothing tells NCCL of iterations. But a training step calls the same collectives in the same order, with
//! the same sizes on the same communicators. The iteration is the smallest part of that sequence that stands
//! at least three times in a row. It is inferred: the part that recurs is mostly what the program calls an
//! iteration.
//!
//! - Collectives before the first iteration (initialisation) are passed over, and so are those that come now
//!   and then (a checkpoint, an evaluation): a part may be interrupted.
//! - A part that is interrupted again and again after the same number of collectives is not the iteration,
//!   but a part of it: layers, or the micro-batches of gradient accumulation.
//! - The sequence does not show where in the cycle an iteration begins. The beginning is put where the
//!   program usually pauses longest.

mod finder;

pub use finder::{Collective, IterationFinder, MAX_COLLECTIVES, Mark, Period, marks};

#[cfg(test)]
mod tests;
