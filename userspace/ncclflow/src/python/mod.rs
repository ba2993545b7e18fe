//! Python of running processes: the interpreter ([`Runtimes`]), and its call stacks at probes' hits. The
//! kernel side finds these; here their frames are named.
//!
//! [`Interpreter`] is a process's CPython, with all that the kernel side needs to walk it. The kernel side
//! sends a stack once, as addresses of code objects. A thread of its own reads the code objects from the
//! process's memory, soon after, as code can be freed, and puts the named stack into [`StackBook`].

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
