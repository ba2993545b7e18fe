//! The live view: statistics of two moments become rates, rates become rows, rows are drawn or printed.
//!
//! Everything but `screen` is pure: readings in, rows and text out.

mod draw;
mod lag;
mod printed;
mod rates;
mod report;
mod rows;
mod screen;
mod shown;
mod state;

#[cfg(test)]
mod tests;

pub use lag::Lag;
pub use printed::print_table;
pub use rates::{KindRates, PeerRates, RankRates, Rates, Reading};
pub use report::{Subject, TopReport};
pub use rows::{Row, Sort, View, rows};
pub use screen::{Feed, show};
pub use state::{Action, State};
