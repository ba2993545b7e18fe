//! Stacks of the Python threads of a running process, read without stopping them and without the GIL.
//!
//! [`Runtimes`] looks for the interpreter among the mapped files, [`look`] walks the stacks by the crate
//! `cpython`, and [`report`] has the result, as data and in words. If a process's interpreter is not
//! understood, its report says why.

mod look;
mod report;
mod variable;

pub(super) use inspect::python::Runtimes;
pub(super) use look::look;
pub use report::{PythonGroup, PythonReport, PythonThread};
pub(super) use report::{groups, place};
pub use variable::PythonVariable;

#[cfg(test)]
mod tests;
