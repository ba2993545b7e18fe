//! Times of Chrome's JSON: decimal numbers of µs. As floating point, today's times would lose their ns.

/// Largest time that is believed, some 146 years.
const MAX: i64 = i64::MAX / 2;

/// Returns the ns of a JSON number of µs, or of a text with one. Fractions of a ns are dropped.
pub(super) fn nanoseconds(json: &str) -> Option<i64> {
    let text = json.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(json);
    let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_decimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_decimal(whole) || !is_decimal(fraction) {
        return of_float(text);
    }
    let places: String = fraction.chars().chain("000".chars()).take(3).collect();
    let ns = whole.parse::<i64>().ok()?.checked_mul(1000)?.checked_add(places.parse().ok()?)?;
    (ns <= MAX).then_some(if is_negative { -ns } else { ns })
}

/// Parses the other form of numbers in JSON: 1.5e9.
fn of_float(text: &str) -> Option<i64> {
    let ns = text.parse::<f64>().ok()? * 1000.0;
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "within the bounds")]
    (ns.abs() <= MAX as f64).then_some(ns as i64)
}

#[cfg(test)]
mod tests {
    use super::nanoseconds;

    #[test]
    fn times_keep_their_nanoseconds() {
        for (json, ns) in [
            ("1790857026000000.123", Some(1_790_857_026_000_000_123)),
            ("4502092763148.269", Some(4_502_092_763_148_269)),
            ("0", Some(0)),
            ("-1.5", Some(-1500)),
            ("0.0019", Some(1)),
            ("7.", Some(7000)),
            ("\"12.25\"", Some(12_250)),
            ("1.5e3", Some(1_500_000)),
            ("1e300", None),
            ("99999999999999999999", None),
            ("9223372036854775", None),
            ("null", None),
            ("\"\"", None),
            ("NaN", None),
            ("{}", None),
            ("\"", None),
            ("-", None),
        ] {
            assert_eq!(nanoseconds(json), ns, "{json}");
        }
    }
}
