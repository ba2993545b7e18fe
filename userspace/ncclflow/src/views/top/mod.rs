//! The live view: two snapshots of the statistics become rates, rates become rows, rows are drawn or printed.
//!
//! All of it is pure: snapshots in, rows and text out.

mod columns;
mod draw;
mod equals;
mod lag;
mod once;
mod page;
mod rates;
mod rows;
mod state;
mod window;

#[cfg(test)]
mod tests;

pub use draw::draw;
pub use once::{TopReport, print_table};
pub use rates::{Rates, ShownRecording, Snapshot, Subject, WatchedProcess};
pub use rows::{Shape, Sort, View, rows};
pub use state::{LEAST_NS, State};
