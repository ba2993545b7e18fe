//! The identity of a library: the bytes of its `NT_GNU_BUILD_ID` note.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::hex;

/// The longest build-id accepted. SHA-1 ones have 20 bytes; linkers let the user choose any length.
const MAX_BYTES: usize = 64;

/// A build-id. Shown and serialised as lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId(Vec<u8>);

impl BuildId {
    /// Takes the bytes of a build-id note; `None` when they are none or too many.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (!bytes.is_empty() && bytes.len() <= MAX_BYTES).then(|| Self(bytes.to_vec()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() > 2 * MAX_BYTES {
            return None;
        }
        Self::new(&hex::decode(text)?)
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl Serialize for BuildId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BuildId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::from_hex(&text).ok_or_else(|| de::Error::custom("a build-id is an even number of hex digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::BuildId;

    #[test]
    fn hex_goes_both_ways() {
        let id = BuildId::new(&[0x3c, 0x09, 0x8e, 0x06]).unwrap();
        assert_eq!(id.to_string(), "3c098e06");
        assert_eq!(BuildId::from_hex("3C098e06"), Some(id.clone()));
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"3c098e06\"");
        assert_eq!(serde_json::from_str::<BuildId>("\"3c098e06\"").unwrap(), id);
    }

    #[test]
    fn what_is_no_build_id_is_refused() {
        for text in ["", "3", "3g", "é€", &"00".repeat(65)] {
            assert_eq!(BuildId::from_hex(text), None, "{text}");
        }
    }
}
