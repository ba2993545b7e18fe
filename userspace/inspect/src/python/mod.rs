//! Python of running processes: the interpreter ([`Runtimes`]), and reading of its objects.
//!
//! [`Interpreter`] is a process's CPython, with all that the kernel side needs to walk it.

mod copied;
mod find;
mod interpreter;
mod pages;
mod walk;

use flow::schema::PythonFrame;

use crate::process::printable;

pub use copied::Copied;
pub use find::Runtimes;
pub use interpreter::Interpreter;
pub use pages::Pages;
pub use walk::{guard_of, guard_places, is_alive, without_python, word};

/// Makes a frame of a process's Python one that reports have.
pub fn shown(frame: cpython::PyFrame) -> PythonFrame {
    PythonFrame {
        function: printable(&frame.function),
        qualname: frame.qualname.map(|name| printable(&name)),
        file: printable(&frame.file),
        line: frame.line,
    }
}
