//! Native frames of call stacks: from a copy of the stack, which the kernel side sends where it finds a new one, to
//! functions.
//!
//! [`copies`] puts the pieces of a copy together, `threads` unwinds it, [`merge`] lays Python's frames into it, and
//! [`slots`] tells the kernel side by which words the next stack of the kind is known. A thread does so: symbol tables
//! of frameworks take a second to read. What a process's code is must be known at once, its names need not.

mod copies;
mod merge;
mod slots;
mod thread;

pub(crate) use slots::SlotSink;
pub(crate) use thread::{NativeFeed, NativeOptions, start};
