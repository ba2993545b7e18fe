//! Names of transports.

use std::{fmt, ops::Deref, str};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Name of the transport that moves a connection's data: `NET`, `P2P`, `SHM`, `COL` …; empty if it could not
/// be read. `ncclTransport.name` has 8 bytes in every version from 2.16 to 2.32 (src/include/transport.h).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transport([u8; 8]);

impl Transport {
    /// Takes the printable bytes of a C string, up to 8.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut name = [0; 8];
        let printable = bytes.iter().take_while(|byte| **byte != 0).filter(|byte| byte.is_ascii_graphic());
        name.iter_mut().zip(printable).for_each(|(to, byte)| *to = *byte);
        Self(name)
    }

    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        self.0.get(..end).and_then(|name| str::from_utf8(name).ok()).unwrap_or_default()
    }
}

impl From<&str> for Transport {
    fn from(name: &str) -> Self {
        Self::from_bytes(name.as_bytes())
    }
}

impl Deref for Transport {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl Serialize for Transport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Transport {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|name| Self::from(name.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_keeps_what_can_be_printed() {
        let name = |bytes: &[u8]| Transport::from_bytes(bytes).as_str().to_owned();
        assert_eq!(name(b"NET\0\0\0\0\0"), "NET");
        assert_eq!(name(b"P2P\0junk"), "P2P");
        assert_eq!(name(b"\x1bA\xffB C\x07\x08"), "ABC");
        assert_eq!(name(b"EIGHTLONG"), "EIGHTLON");
        assert!(Transport::default().is_empty());
    }
}
