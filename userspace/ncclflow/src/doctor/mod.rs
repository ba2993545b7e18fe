//! Tells whether this host can trace. Each requirement is checked, or tried, and judged as ok,
//! degraded or no, with a remedy.
//!
//! Nothing here needs privileges. A check that is not permitted says so.

mod checks;
mod facts;
mod files;
mod kernel;
mod libraries;
mod privileges;
mod process;
mod report;
mod trial;

#[cfg(test)]
mod tests;

pub use checks::{Check, Verdict};
pub use facts::Facts;
pub use report::{Report, examine};
