//! Reading of a report that another version, or anybody, can have written.

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

/// Most entries of a list that are read.
const MAX_ENTRIES: usize = 65_536;

/// Reads a value; one that is not understood counts as missing.
///
/// # Errors
/// If the text is no JSON.
pub(super) fn value<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(T::deserialize(Value::deserialize(from)?).unwrap_or_default())
}

/// Reads a list; entries that are not understood are left out.
///
/// # Errors
/// If the text is no JSON.
pub(super) fn list<'de, D, T, L>(from: D) -> Result<L, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
    L: FromIterator<T>,
{
    let entries = match Value::deserialize(from)? {
        Value::Array(entries) => entries,
        _ => Vec::new(),
    };
    Ok(entries.into_iter().take(MAX_ENTRIES).filter_map(|entry| T::deserialize(entry).ok()).collect())
}
