//! Several measurements of one thing.

use std::fmt;

use serde::Serialize;

/// Median, smallest and largest of several measurements.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) rounds: usize,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_found() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]).to_string(), "2.00 [1.00 … 3.00]");
        assert_eq!(Spread::of([400.0, 100.0]).to_string(), "250 [100 … 400]");
        assert!(Spread::of([]).median.is_nan());
    }
}
