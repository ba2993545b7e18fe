//! Python of running processes: which interpreter it is ([`Runtimes`]), and its call stacks at probes' hits: where the kernel
//! side finds them, and what their frames are called.
//!
//! [`Interpreter`] is a process's CPython, and what the kernel side is told of it. The kernel side sends a stack once, as
//! addresses of code objects. [`StackBook`] gets what they are: a thread of its own reads the code objects from the
//! process's memory, soon after, as code can be freed.

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

/// Whether code in this file was installed by somebody, and is not the user's own.
pub(crate) fn is_of_a_library(file: &str) -> bool {
    const FOLDERS: [&str; 3] = ["/site-packages/", "/dist-packages/", "/lib/python3."];
    file.starts_with('<') || FOLDERS.iter().any(|folder| file.contains(folder))
}
