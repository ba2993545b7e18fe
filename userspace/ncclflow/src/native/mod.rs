//! Native frames of call stacks: from a copy of the stack, which the kernel side sends where it finds a new one, to
//! functions.
//!
//! [`copies`] puts the pieces of a copy together, `threads` unwinds it, [`merge`] lays Python's frames into it, and
//! [`slots`] tells the kernel side by which words the next stack of the kind is known. A thread does so: symbol tables
//! of frameworks take a second to read. What a process's code is must be known at once, its names need not.
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
pub(crate) use thread::{NativeFeed, NativeOptions, start};
