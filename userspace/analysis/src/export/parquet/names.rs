//! Names of folders and files.

use std::fmt::Write as _;

/// Hive's name for a missing value.
const NOTHING: &str = "__HIVE_DEFAULT_PARTITION__";

/// Most bytes of a folder's name: file systems take 255.
const MAX_NAME: usize = 200;

/// Returns the folder `key=value` of a partition. As in Hive, characters with a meaning for readers or file
/// systems are escaped. Values too long for a folder are cut, and end with a checksum of the whole.
pub(super) fn partition(key: &str, value: &str) -> String {
    let mut name = format!("{key}=");
    for character in value.chars() {
        let before = name.len();
        if character.is_alphanumeric() || "-_.".contains(character) {
            name.push(character);
        } else {
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a string does not fail.
                let _ = write!(name, "%{byte:02X}");
            }
        }
        if name.len() > MAX_NAME {
            name.truncate(before);
            let _ = write!(name, "-{:08x}", crc32fast::hash(value.as_bytes()));
            break;
        }
    }
    if value.is_empty() {
        name.push_str(NOTHING);
    }
    name
}

/// Returns a file's name while it is written. Readers skip names that begin so.
pub(super) fn temporary(name: &str) -> String {
    format!(".{name}.part")
}

#[cfg(test)]
mod tests {
    use super::partition;

    #[test]
    fn values_leave_no_folder() {
        assert_eq!(partition("host", "node-1.example_a"), "host=node-1.example_a");
        assert_eq!(partition("host", "../../etc"), "host=..%2F..%2Fetc");
        assert_eq!(partition("job", "a=b c%\n"), "job=a%3Db%20c%25%0A");
        assert_eq!(partition("job", "prüf"), "job=prüf");
        assert_eq!(partition("job", "a\u{9b}2J\u{202e}"), "job=a%C2%9B2J%E2%80%AE");
        assert_eq!(partition("job", ""), "job=__HIVE_DEFAULT_PARTITION__");
    }

    #[test]
    fn long_values_stay_apart_and_fit() {
        let long = |end: &str| partition("host", &format!("{}{end}", "\u{1}/ü".repeat(5000)));
        assert!(long("a").len() <= 220 && long("a").starts_with("host=%01%2Fü%01"), "{}", long("a"));
        assert_ne!(long("a"), long("b"));
        assert_eq!(long("a"), long("a"));
    }
}
