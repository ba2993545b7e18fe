//! From records to rows: decode → model → rows, which go to sinks. No kernel is needed: a recording is read
//! on any machine.

mod bindings;
mod model_budget;
mod pipeline;
mod processes;
mod pxn;
mod recorded_session;
mod watched_recording;

pub(crate) use bindings::SharedBindings;
pub use pipeline::Pipeline;
pub(crate) use pipeline::{Following, STRAGGLE_NS};
pub(crate) use processes::Traced;
pub use recorded_session::{Read, ReadPart, RecordedSession};
pub use watched_recording::WatchedRecording;
