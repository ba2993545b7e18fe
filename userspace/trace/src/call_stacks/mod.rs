//! Call stacks at probes' hits: the kernel side sends each new one, and here its frames are named.
//!
//! The kernel side sends a stack once, as addresses of code objects. A thread of its own reads the code
//! objects from the process's memory, soon after, as code can be freed ([`python_names`]), another one adds
//! native frames ([`native`]), and the named stack comes into [`StackBook`].
//!
//! # How a stack travels
//!
//! A stack is a record of its own, before that of its hit, with the same thread and time, by which the two
//! are joined (`record::processes`). So records of hits are the same with and without stacks. Programs that
//! walk stacks are programs of their own (`fetch_with_stack`, `walk_with_stack`): a session without stacks
//! loads and pays nothing. A known stack is 64 bytes; a new one has its frames, and wakes the drain.
//!
//! The kernel side knows no CPython. `PythonWalk` has offsets, and which words of a code object tell it from
//! another. These words are in the id, as code that is made and dropped leaves its address to other code.
//! Their checksum goes with the frames, so user space sees whether the code object that it reads is that of
//! the hit. A function that stands several times among five frames in a row has its code read once.

mod book;
pub(crate) mod native;
mod python_names;

pub(crate) use book::StackBook;
pub(crate) use python_names::{Interpreters, StackFeed, Traced, start};
