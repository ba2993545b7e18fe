//! Moments as people write them on a command line.

use std::{
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A moment in or around recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Unix time in nanoseconds.
    Wall(u64),
    /// Time after the recordings begin.
    AfterBegin(Duration),
    /// Time before they end.
    BeforeEnd(Duration),
}

impl Moment {
    /// Returns Unix time in nanoseconds, where the recordings have the span `begin..end`.
    pub(super) fn wall_ns(self, (begin, end): (u64, u64)) -> u64 {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        match self {
            Self::Wall(at) => at,
            Self::AfterBegin(time) => begin.saturating_add(ns(time)),
            Self::BeforeEnd(time) => end.saturating_sub(ns(time)),
        }
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(time) = text.strip_prefix('-') {
            return duration(time).map(Self::BeforeEnd);
        }
        if let Some(time) = text.strip_prefix('+') {
            return duration(time).map(Self::AfterBegin);
        }
        if text == "now" {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            return Ok(Self::Wall(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)));
        }
        if let Some(seconds) = text.strip_prefix('@') {
            return unix(seconds).map(Self::Wall);
        }
        if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return unix(text).map(Self::Wall);
        }
        rfc3339(text).map(Self::Wall)
    }
}

const KINDS: &str = "give 2026-11-22T14:03:05Z, a Unix time as @1795356185.5, now, -30s (before the end) or +2m (after the begin)";

/// Parses a duration: a number and `ms`, `s`, `m`, `h` or `d`; a number alone is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "ms" => 0.001,
        "" | "s" | "sec" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(format!("`{text}` is not a length of time: give 500ms, 30s, 5m, 2h or 1d")),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{text}` does not begin with a number"))?;
    Duration::try_from_secs_f64(number * factor).map_err(|error| format!("`{text}`: {error}"))
}

/// Converts seconds with a fraction to nanoseconds; all digits count.
fn unix(text: &str) -> Result<u64, String> {
    let error = || format!("`{text}` is not a Unix time in seconds; {KINDS}");
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: u64 = seconds.parse().map_err(|_| error())?;
    if seconds < 100_000_000 {
        return Err(format!("`{text}` is neither a Unix time nor an offset; {KINDS}"));
    }
    let fraction = nanoseconds(fraction).ok_or_else(error)?;
    seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(fraction)).ok_or_else(error)
}

/// Converts the digits behind the point; those after the ninth are cut off.
fn nanoseconds(digits: &str) -> Option<u64> {
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    format!("{digits:0<9.9}").parse().ok()
}

/// Parses `2026-11-22T14:03:05.5Z`, or with `+02:00`; a space can be in the place of the T.
fn rfc3339(text: &str) -> Result<u64, String> {
    let error = || format!("`{text}` is not a time; {KINDS}");
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(error());
    }
    let (date, time) = text.split_once(['T', 't', ' ']).ok_or_else(error)?;
    let zone = time.find(['Z', 'z', '+', '-']).ok_or_else(|| {
        format!("`{text}` has no time zone: add Z for UTC, or an offset as +02:00; the recording's host can be in another zone than this one")
    })?;
    let (time, zone) = time.split_at(zone);
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let fraction = nanoseconds(fraction).ok_or_else(error)?;
    let Some([year, month @ 1..=12, day @ 1..=31]) = numbers::<3>(date, '-') else {
        return Err(error());
    };
    let Some([hour @ 0..=23, minute @ 0..=59, second @ 0..=60]) = numbers::<3>(time, ':') else {
        return Err(error());
    };
    let offset = match zone {
        "Z" | "z" => 0,
        _ => {
            let Some([hours @ 0..=23, minutes @ 0..=59]) =
                zone.get(1..).and_then(|zone| numbers::<2>(zone, ':'))
            else {
                return Err(error());
            };
            let offset = hours * 3600 + minutes * 60;
            if zone.starts_with('-') { -offset } else { offset }
        }
    };
    let seconds = days_since_1970(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - offset;
    let seconds = u64::try_from(seconds).map_err(|_| error())?;
    seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(fraction)).ok_or_else(error)
}

/// Parses `N` numbers of up to four digits.
fn numbers<const N: usize>(text: &str, separator: char) -> Option<[i64; N]> {
    let is_number =
        |part: &str| (1..=4).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    let number = |part: &str| if is_number(part) { part.parse().ok() } else { None };
    let numbers: Option<Vec<i64>> = text.split(separator).map(number).collect();
    numbers?.try_into().ok()
}

/// Returns the days of the Gregorian calendar since 1970. Years begin in March, so that the leap day is their
/// last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

/// Writes a wall time to the minute: `2026-11-28 05:12 UTC`.
pub fn utc_minute(wall_ns: u64) -> String {
    let minutes = wall_ns / 60_000_000_000;
    // The inverse of `days_since_1970`: 146,097 days are 400 years.
    let days = minutes / 1440 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = (month + 2) % 12 + 1;
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute) = (minutes / 60 % 24, minutes % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall(text: &str) -> u64 {
        match text.parse().unwrap() {
            Moment::Wall(at) => at,
            other => panic!("{other:?}"),
        }
    }

    /// Compares with the numbers of `date -u -d TEXT +%s`.
    #[test]
    fn a_minute_is_written_as_it_is_read() {
        for time in ["2026-11-28 05:12", "2024-02-29 23:59", "2000-03-01 00:00", "1999-12-31 12:30"] {
            assert_eq!(utc_minute(wall(&format!("{time}:59Z"))), format!("{time} UTC"));
        }
    }

    #[test]
    fn wall_times_are_those_of_date() {
        for (text, seconds) in [
            ("2026-11-22T14:03:05Z", 1_795_356_185),
            ("2024-02-29T23:59:59Z", 1_709_251_199),
            ("2024-03-01 00:00:00Z", 1_709_251_200),
            ("2000-01-01T00:00:00Z", 946_684_800),
            ("2026-01-01T01:30:00+02:00", 1_767_223_800),
            ("2025-12-31T18:30:00-05:00", 1_767_223_800),
            ("@1795356185", 1_795_356_185),
            ("1795356185", 1_795_356_185),
        ] {
            assert_eq!(wall(text), seconds * 1_000_000_000, "{text}");
        }
        assert_eq!(wall("2026-11-22T14:03:05.25Z"), 1_795_356_185_250_000_000);
        assert_eq!(wall("@1795356185.000000001"), 1_795_356_185_000_000_001);
        assert!(wall("now") > 1_700_000_000_000_000_000);
    }

    #[test]
    fn offsets_are_from_the_begin_and_the_end() {
        let span = (1_000_000_000_000, 2_000_000_000_000);
        let at = |text: &str| text.parse::<Moment>().unwrap().wall_ns(span);
        assert_eq!(at("-30s"), 1_970_000_000_000);
        assert_eq!(at("-1.5m"), 1_910_000_000_000);
        assert_eq!(at("+500ms"), 1_000_500_000_000);
        assert_eq!(at("+2h"), 8_200_000_000_000);
        assert_eq!(at("-30"), 1_970_000_000_000);
        assert_eq!(at("-1d"), 0);
    }

    #[test]
    fn what_is_no_moment_says_what_is() {
        for text in
            ["", "noon", "12:30", "2026-13-01T00:00:00Z", "2026-11-22", "-", "+x", "@", "5", "@1.x", "-5y"]
        {
            assert!(text.parse::<Moment>().is_err(), "{text}");
        }
        let error = "2026-11-22T14:03:05".parse::<Moment>().unwrap_err();
        assert!(error.contains("time zone"), "{error}");
    }
}
