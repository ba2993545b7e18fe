//! Python of running processes: the interpreter ([`Runtimes`]), and its call stacks at probes' hits. The
//! kernel side finds these; here their frames are named.
//!
//! [`Interpreter`] is a process's CPython, with all that the kernel side needs to walk it. The kernel side
//! sends a stack once, as addresses of code objects. A thread of its own reads the code objects from the
//! process's memory, soon after, as code can be freed, and puts the named stack into [`StackBook`].
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
mod copied;
mod find;
mod interpreter;
mod names;
mod pages;
mod walk;

pub(crate) use book::StackBook;
pub(crate) use find::Runtimes;
pub use interpreter::Interpreter;
pub(crate) use names::{Interpreters, StackFeed, Traced, start};
pub(crate) use pages::Pages;
pub(crate) use walk::without_python;

/// Tells whether code in this file was installed by somebody, and is not the user's own.
pub(crate) fn is_of_a_library(file: &str) -> bool {
    const FOLDERS: [&str; 3] = ["/site-packages/", "/dist-packages/", "/lib/python3."];
    file.starts_with('<') || FOLDERS.iter().any(|folder| file.contains(folder))
}
