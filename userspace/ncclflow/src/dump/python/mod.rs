//! Where the Python threads of a running process are, found out without stopping them and without the GIL.
//!
//! [`Runtimes`] looks for the interpreter among the mapped files, [`look`] walks the stacks by the crate `cpython`, and
//! [`report`] is what is known of them, as data and in words. A process whose interpreter is not understood says why.

mod look;
mod report;

pub(super) use crate::python::Runtimes;
pub(super) use look::{Wanted, look};
pub use report::{PythonFrame, PythonGroup, PythonReport, PythonThread};
pub(super) use report::{groups, place};

#[cfg(test)]
mod tests;
