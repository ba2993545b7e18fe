//! Can this host trace? Each thing that tracing needs is looked at, or tried, and comes out as ok, degraded or no, with the remedy.
//!
//! Nothing here needs privileges: what may not be looked at is said to be so.

mod checks;
mod facts;
mod kernel;
mod libraries;
mod privileges;
mod report;
mod trial;

#[cfg(test)]
mod tests;

pub use checks::{Check, Verdict};
pub use facts::Facts;
pub use report::{Report, examine};
