//! Errors of the operating system in messages.

use std::io;

use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

/// Most characters of an error's text: it goes into a report.
const MAX_TEXT: usize = 400;

pub(crate) fn serialize<S: Serializer>(error: &io::Error, serializer: S) -> Result<S::Ok, S::Error> {
    let text: String = super::printable(&error.to_string()).chars().take(MAX_TEXT).collect();
    (error.raw_os_error(), text).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<io::Error, D::Error> {
    let (number, text) = <(Option<i32>, String)>::deserialize(deserializer)?;
    Ok(number.map_or_else(|| io::Error::other(text), io::Error::from_raw_os_error))
}
