//! Numbers, sizes and durations for people, in few columns.

use std::fmt::Display;

/// Writes a number in four digits at most: `950`, `1.25k`, `12.5M`.
pub fn number(value: f64) -> String {
    let (scaled, unit) = scaled(value);
    if unit.is_empty() && value.fract().abs() < 0.05 { format!("{value:.0}") } else { digits(scaled, unit) }
}

/// Writes a size: `0 B`, `12.5 GB`, in decimal units like NCCL's own tests.
pub fn bytes(value: f64) -> String {
    let (scaled, unit) = scaled(value);
    if unit.is_empty() {
        return format!("{value:.0} B");
    }
    let unit = if unit == "k" { "K" } else { unit };
    format!("{} {unit}B", digits(scaled, ""))
}

/// Writes a duration in nanoseconds: `85µs`, `1.2ms`, `12s`.
pub fn nanoseconds(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0}ns"),
        ns if ns < 1e6 => digits(ns / 1e3, "µs"),
        ns if ns < 1e9 => digits(ns / 1e6, "ms"),
        ns => digits(ns / 1e9, "s"),
    }
}

/// Writes a duration in nanoseconds for a sentence: `850 ms`, `12.3 s`, in microseconds at least.
pub fn spaced_seconds(ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let ns = ns as f64;
    match ns {
        ns if ns < 1e6 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{} ms", digits(ns / 1e6, "")),
        ns => format!("{} s", digits(ns / 1e9, "")),
    }
}

/// Writes the time since something happened: `now`, `12s`, `3m`, `2h`.
pub fn ago(seconds: f64) -> String {
    match seconds {
        s if s < 2.0 => "now".to_owned(),
        s if s < 120.0 => format!("{s:.0}s"),
        s if s < 7200.0 => format!("{:.0}m", s / 60.0),
        s => format!("{:.0}h", s / 3600.0),
    }
}

/// Writes a duration in seconds: `45s`, `3m07s`, `2h05m`, `4d03h`.
pub fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match () {
        () if days > 0 => format!("{days}d{:02}h", hours % 24),
        () if hours > 0 => format!("{hours}h{:02}m", minutes % 60),
        () if minutes > 0 => format!("{minutes}m{:02}s", seconds % 60),
        () => format!("{seconds}s"),
    }
}

fn scaled(value: f64) -> (f64, &'static str) {
    match value {
        v if v < 1e3 => (v, ""),
        v if v < 1e6 => (v / 1e3, "k"),
        v if v < 1e9 => (v / 1e6, "M"),
        v if v < 1e12 => (v / 1e9, "G"),
        v => (v / 1e12, "T"),
    }
}

fn digits(value: f64, unit: &str) -> String {
    if value < 9.995 {
        format!("{value:.2}{unit}")
    } else if value < 99.95 {
        format!("{value:.1}{unit}")
    } else {
        format!("{value:.0}{unit}")
    }
}

/// Counts things: `1 rank`, `2 ranks`, `3 processes`.
pub fn counted(number: impl Display + PartialEq + From<u8> + Copy, what: &str) -> String {
    if number == 1.into() {
        return format!("1 {what}");
    }
    format!("{number} {what}{}", if what.ends_with(['s', 'h']) { "es" } else { "s" })
}

/// Returns what there is of these things, with their numbers: `3 records were dropped`.
pub fn counts<const N: usize>(things: [(u64, &str); N]) -> impl Iterator<Item = String> {
    things.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let shown: Vec<_> = [0.0, 3.0, 3.25, 999.0, 1250.0, 12_345_678.0].map(number).to_vec();
        assert_eq!(shown, ["0", "3", "3.25", "999", "1.25k", "12.3M"]);
        assert_eq!([0.0, 999.0, 1.5e3, 12.34e9].map(bytes).to_vec(), ["0 B", "999 B", "1.50 KB", "12.3 GB"]);
        assert_eq!(
            [15.0, 85e3, 1.2e6, 12e9].map(nanoseconds).to_vec(),
            ["15ns", "85.0µs", "1.20ms", "12.0s"]
        );
        assert_eq!([0.4, 12.0, 180.0, 7300.0].map(ago).to_vec(), ["now", "12s", "3m", "2h"]);
    }

    #[test]
    fn times_in_sentences_have_a_space_and_three_digits() {
        let shown = [0, 12_345, 850_000_000, 5_566_000_000, 123_456_000_000].map(spaced_seconds);
        assert_eq!(shown, ["0 µs", "12 µs", "850 ms", "5.57 s", "123 s"]);
    }

    #[test]
    fn ages() {
        assert_eq!(
            [age(5), age(187), age(7500), age(356_400)],
            ["5s", "3m07s", "2h05m", "4d03h"].map(str::to_owned)
        );
    }
}
