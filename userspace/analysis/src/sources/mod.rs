//! Recordings before they are read, whose rows are whose, and names that stay the same over several of them.

mod call_numbers;
pub(crate) mod jobs;
mod source;
mod who;

pub(crate) use call_numbers::CallNumbers;
pub(crate) use jobs::Jobs;
pub(crate) use source::{Offset, ensure_each_once};
pub use source::{Source, recordings_in, sources};
pub(crate) use who::Who;
