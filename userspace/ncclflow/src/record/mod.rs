//! One recording from beginning to end: targets found, probes attached, records drained, files written, probes detached.

mod accounts;
mod bindings;
mod export;
mod flag_file;
mod follow;
mod gaps;
mod hang;
mod limit;
mod live;
mod neighbours;
mod origins;
mod output;
mod pipeline;
mod reaper;
mod recorder;
mod replay;
mod report;
mod results;
mod setup;
mod spare;
mod takers;
mod told;
mod watch;
mod windows;

pub use gaps::Gaps;
pub use pipeline::Pipeline;
pub use recorder::{Notice, Outcome, RecordOptions, StopHandle, Targets, record};
pub use replay::{Replayed, replay};
pub use setup::{LibraryInUse, ProbeChoice, Setup, Target, Wanted};
pub use windows::WindowOptions;
