//! One recording from beginning to end: targets found, probes attached, records drained, files written, probes detached.

mod intake;
mod pipeline;
mod recorder;
mod replay;
mod setup;

pub use pipeline::{Binding, Pipeline};
pub use recorder::{Notice, Outcome, RecordOptions, StopHandle, record};
pub use replay::{Replayed, replay};
pub use setup::{LibraryInUse, Setup, Target, Wanted};
