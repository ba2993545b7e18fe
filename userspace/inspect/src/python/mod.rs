//! Python of running processes: the interpreter ([`Runtimes`]), and reading of its objects.
//!
//! [`Interpreter`] is a process's CPython, with all that the kernel side needs to walk it.

mod find;
mod interpreter;
mod pages;
mod walk;

pub use find::{Runtimes, TargetMemory};
pub use interpreter::Interpreter;
pub use pages::Pages;
pub use torch::shown;
pub use walk::{guard_of, guard_places, is_alive, without_python, word};
