//! Tables of figures, and the spread of what is measured several times.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Median, smallest and largest of several measurements.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    rounds: usize,
}

impl Spread {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            at(middle)
        } else {
            f64::midpoint(at(middle.wrapping_sub(1)), at(middle))
        };
        Self { median, min: at(0), max: at(values.len().wrapping_sub(1)), rounds: values.len() }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, min, max, rounds: _ } = self;
        let digits = if *median >= 100.0 { 0 } else { 2 };
        write!(f, "{median:.digits$} [{min:.digits$} … {max:.digits$}]")
    }
}

/// Rows of figures with their names. Each row is printed as soon as it is there, and kept for the result.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Value>);

impl Table {
    /// Adds a row, the figures of which have the names of those of the first row.
    pub(crate) fn add<'a>(&mut self, row: impl IntoIterator<Item = (&'a str, Value)>) {
        let (mut head, mut line, mut kept) = (String::new(), String::new(), Map::new());
        for (name, value) in row {
            let (width, text) = cell(&value);
            let width = width.max(name.len()) + 2;
            // Writing to a string cannot fail.
            _ = write!(head, "{name:>width$}").and_then(|()| write!(line, "{text:>width$}"));
            kept.insert(name.to_owned(), value);
        }
        if self.0.is_empty() {
            eprintln!("{head}");
        }
        eprintln!("{line}");
        self.0.push(Value::Object(kept));
    }

    pub(crate) fn into_json(self) -> Value {
        Value::Array(self.0)
    }
}

/// Returns how wide cells of this kind are, and the cell's text.
fn cell(value: &Value) -> (usize, String) {
    match value {
        Value::String(text) => (28, text.clone()),
        Value::Number(number) if number.is_f64() => {
            (10, format!("{:.2}", number.as_f64().unwrap_or(f64::NAN)))
        }
        Value::Number(number) => (10, number.to_string()),
        // A spread of nothing has no numbers.
        _ => (24, Spread::deserialize(value).map_or_else(|_| "-".to_owned(), |spread| spread.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_found() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]).to_string(), "2.00 [1.00 … 3.00]");
        assert_eq!(Spread::of([400.0, 100.0]).to_string(), "250 [100 … 400]");
        assert!(Spread::of([]).median.is_nan());
    }

    #[test]
    fn rows_are_kept() {
        let mut table = Table::default();
        table.add([("what", "a job".into()), ("ms", serde_json::json!(Spread::of([1.0, 4.0])))]);
        assert_eq!(table.into_json()[0]["ms"]["median"], 2.5);
        assert_eq!(cell(&serde_json::json!(Spread::of([]))).1, "-");
    }
}
