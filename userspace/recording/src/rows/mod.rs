//! From records to rows: decode → model → rows, which go to sinks. No kernel is needed: a recording is read
//! on any machine.

mod bindings;
mod model_budget;
mod pipeline;
mod processes;
mod pxn;
mod recorded_session;
mod watched_recording;

pub use bindings::SharedBindings;
pub use model_budget::ModelBudget;
pub use pipeline::Pipeline;
pub use pipeline::{Following, STRAGGLE_NS};
pub use processes::Traced;
pub use recorded_session::{Read, ReadPart, RecordedSession};
pub use watched_recording::WatchedRecording;
