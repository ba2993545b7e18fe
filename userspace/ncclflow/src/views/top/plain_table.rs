//! `top --once`: the table as plain text.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use super::{lag::Lag, rows::Row};
use flow::text::{ago, bytes, column_widths, number};

pub(super) const HEADINGS: [&str; 8] = ["COMM", "RANK", "PID", "OPS/S", "BYTES/S", "SEEN", "LAG", "MOST"];

/// Prints the rows, a line each, with a heading; columns are as wide as they need to be.
pub fn print_table(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let headings = HEADINGS.map(str::to_owned);
    let lines: Vec<[String; 8]> = std::iter::once(headings).chain(rows.iter().map(cells)).collect();
    let widths = column_widths(&lines);
    for line in &lines {
        let mut text = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(text, "{cell:<width$}  ");
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

fn cells(row: &Row) -> [String; 8] {
    let most: Vec<String> = row
        .kinds
        .iter()
        .take(2)
        .map(|kind| format!("{} {}/s", kind.label(), number(kind.ops_per_s)))
        .collect();
    let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    [
        dash(row.comm.clone()),
        dash(row.rank.clone()),
        dash(row.pid.clone()),
        number(row.ops_per_s),
        bytes_cell(row),
        ago(row.idle_s),
        dash(row.lag.map(Lag::label).unwrap_or_default()),
        dash(most.join(", ")),
    ]
}

/// Formats bytes, with a mark where there were more.
pub(super) fn bytes_cell(row: &Row) -> String {
    let least = if row.bytes_are_least { ">" } else { "" };
    format!("{least}{}", bytes(row.bytes_per_s))
}
