//! Recordings before they are read, whose rows are whose, and names that stay the same over several of them.

pub(crate) mod call_numbers;
pub(crate) mod jobs;
pub(crate) mod source;
pub(crate) mod who;

pub(crate) use call_numbers::CallNumbers;
pub(crate) use jobs::Jobs;
pub(crate) use source::ensure_each_once;
pub use source::{Source, recordings_in, sources};
pub(crate) use who::Who;
