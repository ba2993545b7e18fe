//! Call stacks behind NCCL's kernels and collectives, grouped and counted.
//!
//! [`trace`] finds them in the trace of a profiler; [`LiveStacks`] counts those of running processes and of
//! recordings. The result is a [`GroupedStacks`], and all forms of output are made of that alone:
//! [`write_text`], [`write_folded`], [`pprof`], and JSON by `serde`.

mod folded;
mod grouped;
mod live;
mod pprof;
mod text;
pub mod trace;

pub use folded::write_folded;
pub use grouped::{Frame, GroupedStacks, Stack, StackCounter};
pub use live::{CallGroup, CallStacks, LiveStacks};
pub use pprof::pprof;
pub use text::write_text;
