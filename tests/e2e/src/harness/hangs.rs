//! Kinds of hangs, and of waits that are none, made on the bed, and what `ncclflow dump` must say of each. The tests run
//! each kind once; `cargo xtask verify hangs` runs it often and counts.

mod kind;
mod kinds;
mod outcome;
mod thread_kinds;
mod trial;
mod trials;

pub use kind::{Expected, Given, Kind, Over, Then};
pub use kinds::{KINDS, kind};
pub use outcome::{Outcome, judge, summary};
pub use trial::{GpuStates, Trial, start};
pub use trials::{Arguments, Tried, try_each};
