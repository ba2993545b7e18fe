//! Native frames of call stacks, from copies of the stack to functions. The kernel side sends a copy when it
//! finds a new stack.
//!
//! [`copies`] joins the pieces of a copy, `threads` unwinds it, [`merge`] adds Python's frames, and [`slots`]
//! tells the kernel side by which words it knows the next stack of the kind. A thread of its own does so:
//! reading symbol tables of frameworks takes a second. A process's mappings must be read at once, the names
//! of its functions need not.

mod copies;
mod merge;
mod slots;
mod thread;

pub(crate) use slots::SlotSink;
pub(crate) use thread::{NativeFeed, NativeOptions, start};
