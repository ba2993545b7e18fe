//! One recording from beginning to end: targets found, probes attached, records drained, files written, probes detached.

mod pipeline;
mod recorder;
mod setup;

pub use pipeline::Pipeline;
pub use recorder::{Notice, Outcome, RecordOptions, StopHandle, record};
pub use setup::{LibraryInUse, Setup, Target};
