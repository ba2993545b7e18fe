//! Columns that fit a width: the least important are left out, and no number is ever cut.

use flow::text::cut_right;

/// Least width of a column whose text may be cut.
const LEAST_TEXT: usize = 12;

/// A column of a table of text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) heading: &'static str,
    kind: Kind,
    /// Least width, so that a column does not move with its numbers.
    least: usize,
    /// Columns with larger numbers are left out first.
    order: u8,
    /// A column without any text is left out.
    is_optional: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    /// Text that may be cut.
    Cut,
}

/// Makes a column of text, which is never cut.
pub(super) const fn text(heading: &'static str, least: usize, order: u8) -> Column {
    Column { heading, kind: Kind::Text, least, order, is_optional: false }
}

/// Makes a column of numbers, at its right end.
pub(super) const fn number(heading: &'static str, least: usize, order: u8) -> Column {
    Column { heading, kind: Kind::Number, least, order, is_optional: false }
}

/// Makes a column of text that is cut where there is no room for it.
pub(super) const fn cut(heading: &'static str, order: u8) -> Column {
    Column { heading, kind: Kind::Cut, least: 0, order, is_optional: false }
}

impl Column {
    pub(super) const fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }
}

/// A column that is shown: its index, and its width.
pub(super) type Shown = (usize, usize);

/// Chooses the columns of a table that fit into `width` with a space of `gap` between them, and how wide each
/// is. The most important one is always shown.
pub(super) fn chosen<const N: usize>(
    columns: &[Column; N],
    lines: &[[String; N]],
    width: usize,
    gap: usize,
) -> Vec<Shown> {
    let content =
        |at: usize| lines.iter().filter_map(|line| line.get(at)).map(|cell| cell.chars().count()).max();
    let mut shown: Vec<(usize, &Column, usize)> = columns
        .iter()
        .enumerate()
        .map(|(at, column)| (at, column, content(at).unwrap_or(0)))
        .filter(|(_, column, content)| !column.is_optional || *content > 0)
        .map(|(at, column, content)| (at, column, content.max(column.heading.len()).max(column.least)))
        .collect();
    let least = |column: &Column, content: usize| match column.kind {
        Kind::Cut => content.min(LEAST_TEXT),
        Kind::Text | Kind::Number => content,
    };
    let total = |shown: &[(usize, &Column, usize)]| {
        let cells: usize = shown.iter().map(|(_, column, content)| least(column, *content)).sum();
        cells + gap * shown.len().saturating_sub(1)
    };
    while shown.len() > 1 && total(&shown) > width {
        let last = shown.iter().map(|(_, column, _)| column.order).max();
        shown.retain(|(_, column, _)| Some(column.order) != last);
    }
    let mut free = width.saturating_sub(total(&shown));
    let widths = shown.iter().map(|&(at, column, content)| {
        let own = least(column, content);
        let more = free.min(content - own);
        free -= more;
        (at, own + more)
    });
    widths.collect()
}

/// Writes a cell as wide as its column.
pub(super) fn padded(column: &Column, cell: &str, width: usize) -> String {
    match column.kind {
        Kind::Number => format!("{cell:>width$}"),
        Kind::Text => format!("{cell:<width$}"),
        Kind::Cut => format!("{:<width$}", cut_right(cell, Some(width))),
    }
}

/// Joins texts by commas: as many as there is room for, the first one always.
pub(super) fn fitting(texts: impl IntoIterator<Item = String>, room: usize) -> String {
    let mut line = String::new();
    for text in texts {
        if line.is_empty() {
            line = text;
        } else if line.chars().count() + ", ".len() + text.chars().count() <= room {
            line.extend([", ", &text]);
        } else {
            break;
        }
    }
    line
}

/// Puts parts on lines of at most `width` columns. No part is cut that is not wider than a line.
pub(super) fn wrapped<'t>(
    parts: impl IntoIterator<Item = &'t str>,
    separator: &str,
    width: usize,
) -> Vec<String> {
    let at_end = separator.trim_end();
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line)
                if [&*line, separator, part, at_end]
                    .map(|text| text.chars().count())
                    .iter()
                    .sum::<usize>()
                    <= width =>
            {
                line.extend([separator, part]);
            }
            Some(line) => {
                *line += at_end;
                lines.push(part.to_owned());
            }
            None => lines.push(part.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] =
        [text("COMM", 0, 1), number("OPS/S", 6, 2), text("JOB", 0, 3).optional(), cut("MOST", 4)];

    fn lines(job: &str) -> Vec<[String; 4]> {
        vec![["0x123456789", "12.5k", job, "AllReduce RING/SIMPLE 100%"].map(str::to_owned)]
    }

    #[test]
    fn columns_are_left_out_and_numbers_never_cut() {
        let at = |width| chosen(&COLUMNS, &lines(""), width, 1);
        assert_eq!(at(80), [(0, 11), (1, 6), (3, 26)], "a column without text takes no room");
        assert_eq!(at(40), [(0, 11), (1, 6), (3, 21)]);
        assert_eq!(at(31), [(0, 11), (1, 6), (3, 12)]);
        assert_eq!(at(30), [(0, 11), (1, 6)]);
        assert_eq!(at(17), [(0, 11)]);
        assert_eq!(at(1), [(0, 11)], "one is always there");
        assert_eq!(chosen(&COLUMNS, &lines("77"), 25, 1), [(0, 11), (1, 6), (2, 3)]);
        assert_eq!(chosen(&COLUMNS, &[], 80, 1), [(0, 4), (1, 6), (3, 4)]);
    }

    #[test]
    fn what_does_not_fit_is_left_out_or_put_on_a_line_of_its_own() {
        let texts = || ["12ms network", "3ms GPU ready"].map(str::to_owned);
        assert_eq!(fitting(texts(), 27), "12ms network, 3ms GPU ready");
        assert_eq!(fitting(texts(), 26), "12ms network");
        assert_eq!(fitting(texts(), 3), "12ms network");
        let parts = ["5 ops/s", "29031 collectives", "NCCL 2.27"];
        assert_eq!(wrapped(parts, "; ", 60), ["5 ops/s; 29031 collectives; NCCL 2.27"]);
        assert_eq!(wrapped(parts, "; ", 28), ["5 ops/s; 29031 collectives;", "NCCL 2.27"]);
        assert_eq!(wrapped("  two  words".split(' '), " ", 80), ["  two  words"]);
    }

    #[test]
    fn cut_texts_say_so() {
        assert_eq!(padded(&COLUMNS[3], "AllReduce", 5), "AllR…");
        assert_eq!(padded(&COLUMNS[1], "1", 3), "  1");
        assert_eq!(padded(&COLUMNS[0], "1", 3), "1  ");
    }
}
