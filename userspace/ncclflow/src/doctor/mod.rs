//! Tells whether this host can trace. Each requirement is checked, or tried, and judged as ok,
//! degraded or no, with a remedy.
//!
//! Nothing here needs privileges. A check that is not permitted says so.

mod host;
mod libraries;
mod process;
mod report;
mod trial;

#[cfg(test)]
mod tests;

pub use report::{Verdict, examine};
