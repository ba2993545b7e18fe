//! Numbers of the command line, read in the same way by every command: PIDs, times, sizes.

use std::time::Duration;

use analysis::export::{duration, words};

/// PIDs of one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pids(Vec<u32>);

impl std::str::FromStr for Pids {
    type Err = String;

    /// Parses `4242,4243`, also with spaces and ends of lines, as `pgrep` prints them.
    fn from_str(text: &str) -> Result<Self, String> {
        let pid = |word: &str| match word.parse() {
            Ok(0) | Err(_) => Err(format!("`{word}` is no PID: give numbers, as 4242,4243")),
            Ok(pid) => Ok(pid),
        };
        let pids: Vec<u32> = words(text).map(pid).collect::<Result<_, _>>()?;
        if pids.is_empty() {
            return Err(
                "no PID is given: if a command in $(…) should give them, it found no process".to_owned()
            );
        }
        Ok(Self(pids))
    }
}

/// Returns all PIDs of an option, each once.
pub(super) fn each(lists: &[Pids]) -> Vec<u32> {
    let mut all: Vec<u32> = Vec::new();
    for pid in lists.iter().flat_map(|Pids(pids)| pids) {
        if !all.contains(pid) {
            all.push(*pid);
        }
    }
    all
}

/// Parses a length of time that is not 0: `5`, `0.5`, `500ms`, `30s`, `5m`.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let length = duration(text)?;
    if length.is_zero() { Err("must be more than 0".to_owned()) } else { Ok(length) }
}

/// Makes a parser of a length of time of at least `least`.
pub(super) fn seconds_from(least: u64) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let length = seconds(text)?;
        let is_enough = length >= Duration::from_secs(least);
        if is_enough { Ok(length) } else { Err(format!("must be {least}s at least")) }
    }
}

/// Makes a parser of a size of at least `least` bytes: a number and K, M, G or T (also KB, KiB …, powers of
/// 1024); a number alone counts `alone`.
pub(super) fn size_from(least: u64, alone: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| {
        let bytes = size(text, alone)?;
        if bytes >= least { Ok(bytes) } else { Err(format!("must be {}M at least", least >> 20)) }
    }
}

/// Makes a parser of a size in whole MiB, from `least` to `most` of them; a number alone counts MiB.
pub(super) fn mebibytes(least: u32, most: u32) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| {
        let mebibytes = u32::try_from(size(text, 1 << 20)?.div_ceil(1 << 20)).unwrap_or(u32::MAX);
        let is_within = (least..=most).contains(&mebibytes);
        if is_within { Ok(mebibytes) } else { Err(format!("must be from {least}M to {most}M")) }
    }
}

/// Parses a size in bytes; a number alone counts bytes.
pub(super) fn byte_count(text: &str) -> Result<u64, String> {
    size(text, 1)
}

fn size(text: &str, alone: u64) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size: give 500M, 1.5G or 2T");
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, unit) = text.split_at_checked(digits).ok_or_else(wrong)?;
    let factor = match unit.trim().to_ascii_uppercase().as_str() {
        "" => alone,
        "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        "T" | "TB" | "TIB" => 1 << 40,
        _ => return Err(wrong()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| wrong())? };
    if number.is_empty() || number == "." || fraction.len() > 9 {
        return Err(wrong());
    }
    let mut parts = u128::from(whole) * u128::from(factor);
    if !fraction.is_empty() {
        let digits: u128 = fraction.parse().map_err(|_| wrong())?;
        let of = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| wrong())?);
        parts += digits * u128::from(factor) / of;
    }
    u64::try_from(parts).map_err(|_| format!("`{text}` is too much"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pids_are_lists_however_they_are_printed() {
        for text in ["1,2", "1 2", "1, 2", "1\n2\n", " 1,,2 ", "1\t2"] {
            assert_eq!(text.parse(), Ok(Pids(vec![1, 2])), "{text:?}");
        }
        assert_eq!(each(&["1,2".parse().unwrap(), "2 3".parse().unwrap()]), [1, 2, 3]);
        for text in ["0", "-1", "1;2", "a", "1.5", "4294967296"] {
            assert!(text.parse::<Pids>().unwrap_err().contains("is no PID"), "{text}");
        }
        assert!("\n".parse::<Pids>().unwrap_err().contains("found no process"));
    }

    #[test]
    fn sizes_are_read_alike_whatever_a_number_alone_counts() {
        let read = ["16", "16M", "16MiB", "0.5G", "1000K"].map(|text| mebibytes(1, 1024)(text).unwrap());
        assert_eq!(read, [16, 16, 16, 512, 1]);
        assert!(mebibytes(1, 1024)("0").is_err() && mebibytes(1, 1024)("2G").is_err());
        assert_eq!(["0", "64K", "1M"].map(|text| byte_count(text).unwrap()), [0, 64 << 10, 1 << 20]);
    }

    #[test]
    fn times_have_units_and_are_seconds_without() {
        let read =
            ["90", "0.5", "500ms", "90s", "15m", "1.5h", "7d", "5 min"].map(|text| seconds(text).unwrap());
        let expected = [90_000, 500, 500, 90_000, 900_000, 5_400_000, 604_800_000, 300_000];
        assert_eq!(read, expected.map(Duration::from_millis));
        for text in ["", "m", "0", "0s", "-20", "5w", "5é", "1e3", "99999999999999999999d", "nan", "inf"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        let from = seconds_from(10);
        assert_eq!((from("9").ok(), from("10s")), (None, Ok(Duration::from_secs(10))));
    }

    #[test]
    fn sizes_have_letters_and_count_as_the_option_says_without() {
        let of = size_from(1 << 20, 1 << 20);
        let read =
            ["500M", "20G", "20 gib", "64", "1024K", "1TB", "1.5G", "2097152B"].map(|text| of(text).unwrap());
        let expected = [500 << 20, 20 << 30, 20 << 30, 64 << 20, 1 << 20, 1 << 40, 3 << 29, 2 << 20];
        assert_eq!(read, expected);
        assert_eq!(size_from(1 << 30, 1 << 30)("64"), Ok(64 << 30));
        for text in ["", "M", "0", "-1", "1000K", "5X", "5é", "1..5G", ".", "1e3", "99999999999T"] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
