//! One recording from beginning to end: targets found, probes attached, records drained, files written, probes detached.

mod accounts;
mod gaps;
mod live;
mod pipeline;
mod recorder;
mod replay;
mod report;
mod setup;
mod takers;

pub use gaps::{Gap, Gaps};
pub use pipeline::{Binding, Pipeline};
pub use recorder::{Notice, Outcome, RecordOptions, StopHandle, record};
pub use replay::{Replayed, replay};
pub use setup::{LibraryInUse, ProbeChoice, Setup, Target, Wanted};
