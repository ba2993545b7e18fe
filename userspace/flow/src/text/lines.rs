//! Lines of a given width, and columns of a table.

use std::fmt::{self, Write};

/// Returns the width of each column: that of its widest cell, in characters.
pub fn column_widths<'r, const N: usize>(rows: impl IntoIterator<Item = &'r [String; N]>) -> [usize; N] {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

/// Cuts a text that is too wide and keeps its end: the end of a path says more than its beginning.
pub fn cut_left(text: &str, width: Option<usize>) -> String {
    let length = text.chars().count();
    match width {
        Some(width) if length > width => {
            let kept: String = text.chars().skip(length + 1 - width.max(1)).collect();
            format!("…{kept}")
        }
        _ => text.to_owned(),
    }
}

/// Cuts a text that is too wide and keeps its beginning.
pub fn cut_right(text: &str, width: Option<usize>) -> String {
    match width {
        Some(width) if text.chars().count() > width => {
            text.chars().take(width.saturating_sub(1)).chain(std::iter::once('…')).collect()
        }
        _ => text.to_owned(),
    }
}

/// Writes items with a separator between them.
pub fn joined(items: impl IntoIterator<Item = impl ToString>, separator: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}

/// Width of a report's lines where they go to no terminal, and at most. No line is longer than 100 columns, with
/// what a terminal adds to it.
pub const REPORT_WIDTH: usize = 98;

/// Writes a paragraph of a report, indented, in one line: [`wrap`] breaks it.
pub fn write_paragraph(out: &mut dyn Write, text: &str, indent: usize) -> fmt::Result {
    writeln!(out, "{:indent$}{text}", "")
}

/// Breaks lines that are longer than `width` columns: see [`write_wrapped`].
pub fn wrap(text: &str, width: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let words = line.trim_start_matches(' ');
        // Writing to a string cannot fail.
        _ = if line.chars().count() > width {
            write_wrapped(&mut out, words, line.len() - words.len(), width)
        } else {
            writeln!(out, "{line}")
        };
    }
    out
}

/// Splits a text into words; what stands in backticks is one word.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    text.split(move |c| {
        is_quoted ^= c == '`';
        c == ' ' && !is_quoted
    })
}

/// Writes `text`, indented, in lines of at most `width` columns. Lines after the first are indented by two
/// more. What stands in backticks, as a command does, is not broken: it can be copied.
pub fn write_wrapped(out: &mut dyn Write, text: &str, indent: usize, width: usize) -> fmt::Result {
    let mut column = 0;
    for word in words(text) {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            writeln!(out)?;
            column = 0;
            write!(out, "{:1$}", "", indent + 2)?;
            column += indent + 2;
        } else if column == 0 {
            write!(out, "{:indent$}", "")?;
            column += indent;
        } else {
            out.write_char(' ')?;
            column += 1;
        }
        out.write_str(word)?;
        column += length;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_not_within_a_command() {
        assert_eq!(wrap("one two three four", 9), "one two\n  three\n  four\n");
        let command = "see `ncclflow dump --stacks -p 4711` for more";
        assert_eq!(wrap(command, 20), "see\n  `ncclflow dump --stacks -p 4711`\n  for more\n");
    }
}
