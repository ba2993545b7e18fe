//! Names of folders and files.

use std::fmt::Write as _;

/// Hive's name for nothing.
const NOTHING: &str = "__HIVE_DEFAULT_PARTITION__";

/// The folder `key=value` of a partition. As Hive does it, what readers or file systems could take for
/// something else is escaped.
pub(super) fn partition(key: &str, value: &str) -> String {
    let mut name = format!("{key}=");
    for character in value.chars() {
        if character.is_ascii() && !character.is_ascii_alphanumeric() && !"-_.".contains(character) {
            // Writing to a string does not fail.
            let _ = write!(name, "%{:02X}", u32::from(character));
        } else {
            name.push(character);
        }
    }
    if value.is_empty() {
        name.push_str(NOTHING);
    }
    name
}

/// A file while it is written. Readers pass over names that begin so.
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
        assert_eq!(partition("job", ""), "job=__HIVE_DEFAULT_PARTITION__");
    }
}
