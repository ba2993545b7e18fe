//! Training iterations, found from the collectives that recur.
//!
//! Nothing tells NCCL of iterations. But a training step calls the same collectives in the same order, with
//! the same sizes on the same communicators. The iteration is the smallest part of that sequence that stands
//! at least three times in a row. It is inferred: what a program does every time is what it calls an
//! iteration, mostly.
//!
//! - What comes before (initialisation) is passed over, and so is what comes now and then (a checkpoint, an
//!   evaluation): a part may be interrupted.
//! - A part that is interrupted again and again after the same number of collectives is not the iteration,
//!   but a part of it: layers, or the micro-batches of gradient accumulation.
//! - Where in the cycle an iteration begins cannot be seen in the sequence. It is put where the program
//!   usually pauses longest.

mod finder;
mod marks;

pub use finder::{Collective, IterationFinder, MAX_COLLECTIVES, Period};
pub use marks::{Mark, marks};

#[cfg(test)]
mod tests;
