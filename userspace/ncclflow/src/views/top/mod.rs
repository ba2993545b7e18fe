//! The live view: two snapshots of the statistics become rates, rates become rows, rows are drawn or printed.
//!
//! All of it is pure: snapshots in, rows and text out.

mod draw;
mod history;
mod json;
mod lag;
mod page;
mod plain_table;
mod rates;
mod rows;
mod state;

#[cfg(test)]
mod tests;

pub use draw::draw;
pub use json::TopReport;
pub use lag::Lag;
pub use plain_table::print_table;
pub use rates::{KindRates, PeerRates, RankRates, Rates, Snapshot, Subject};
pub use rows::{Row, Sort, View, rows};
pub use state::State;
