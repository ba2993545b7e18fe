//! Text for people: numbers with units, and lines and columns that fit a terminal.

mod lines;
mod plain;
mod ranges;
mod units;

pub use lines::{
    REPORT_WIDTH, column_widths, cut_left, cut_right, joined, wrap, write_paragraph, write_wrapped,
};
pub use plain::{PlainWriter, is_obeyed, plain};
pub use ranges::{name_ranks, ranges};
pub use units::{age, ago, bytes, counted, counts, nanoseconds, number, spaced_seconds};
