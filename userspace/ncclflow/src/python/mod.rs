//! Python of running processes: the interpreter ([`Runtimes`]), and reading of its objects.
//!
//! [`Interpreter`] is a process's CPython, with all that the kernel side needs to walk it.

mod copied;
mod find;
mod frame;
mod interpreter;
mod pages;
mod walk;

pub(crate) use copied::Copied;
pub(crate) use find::Runtimes;
pub use frame::PythonFrame;
pub use interpreter::Interpreter;
pub(crate) use pages::Pages;
pub(crate) use walk::{guard_of, guard_places, is_alive, without_python, word};

/// Tells whether code in this file was installed by somebody, and is not the user's own.
pub(crate) fn is_of_a_library(file: &str) -> bool {
    const FOLDERS: [&str; 3] = ["/site-packages/", "/dist-packages/", "/lib/python3."];
    file.starts_with('<') || FOLDERS.iter().any(|folder| file.contains(folder))
}
