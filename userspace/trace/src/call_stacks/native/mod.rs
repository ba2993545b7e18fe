//! Native frames of call stacks, from copies of the stack to functions. The kernel side sends a copy when it
//! finds a new stack.
//!
//! [`copies`] joins the pieces of a copy, `threads` unwinds it, [`merge`] adds Python's frames, and [`slots`]
//! tells the kernel side by which words it knows the next stack of the kind. A thread of its own does so:
//! reading symbol tables of frameworks takes a second. A process's mappings must be read at once, the names
//! of its functions need not.
//!
//! The frames of a C++ program cannot be walked in the kernel without tables. So a new stack is copied in
//! pieces of 1 KiB, and unwound by the unwinder of `dump` (`threads::unwind`). The drain gives the pieces to
//! this thread and to nobody else: memory of tenants gets into no recording.
//!
//! Stack pointer and return address at the probe do not tell a stack from another, as functions that are
//! alike have equal frames. So user space stores, for each probe, stack pointer and return address, where in
//! such stacks the return addresses were (`RETURN_SLOTS`); the id is mixed of these words. A stack with other
//! frames adds its places to the list. A file's symbol table is read once for all addresses that wait, and
//! only what was asked for is kept.

mod copies;
mod merge;
mod slots;
mod thread;

pub(crate) use slots::SlotSink;
pub(crate) use thread::start;
pub(crate) use thread::{NativeFeed, NativeOptions};
