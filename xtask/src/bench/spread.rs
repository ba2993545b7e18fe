//! Figures of several rounds.

use serde_json::{Value, json};

/// Median, least and most of what was measured, to three digits; null if nothing was.
pub(crate) fn spread(values: &[f64]) -> Value {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return Value::Null };
    json!({ "median": round(median(&sorted)), "min": round(min), "max": round(max), "rounds": sorted.len() })
}

/// Of sorted values; not a number if there are none.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match (sorted.len() % 2, sorted.get(middle.wrapping_sub(1)), sorted.get(middle)) {
        (0, Some(low), Some(high)) => f64::midpoint(*low, *high),
        (_, _, Some(high)) => *high,
        _ => f64::NAN,
    }
}

/// The median of unsorted values.
pub(crate) fn median_of(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    median(&sorted)
}

fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_odd_and_even_counts() {
        assert_eq!(spread(&[3.0, 1.0, 2.0]), json!({ "median": 2.0, "min": 1.0, "max": 3.0, "rounds": 3 }));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0])["median"], 2.5);
        assert_eq!(spread(&[]), Value::Null);
    }
}
