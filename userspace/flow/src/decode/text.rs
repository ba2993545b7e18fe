//! Text that comes from the target and goes to files and terminals: only what can be printed is kept.

use std::{fmt, ops::Deref, str};

use nccl_library::nccl::{Name, NameTables};

/// The printable bytes of a C string.
fn printable(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().copied().take_while(|byte| *byte != 0).filter(u8::is_ascii_graphic)
}

/// The name of a function of the API. One that the library's enum has shares its text with all others.
pub(super) fn function_name(names: &NameTables, bytes: &[u8]) -> Name {
    let c_string = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    match str::from_utf8(c_string) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => names.function_named(text),
        _ => Name::from(printable(bytes).map(char::from).collect::<String>().as_str()),
    }
}

/// What moves a connection's data: `NET`, `P2P`, `SHM`, `COL` …; empty where it could not be read.
/// `ncclTransport.name` has 8 bytes in every version from 2.16 to 2.32 (src/include/transport.h).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Transport([u8; 8]);

impl Transport {
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let mut name = [0; 8];
        name.iter_mut().zip(printable(bytes)).for_each(|(to, byte)| *to = byte);
        Self(name)
    }

    /// The name as text.
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

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
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

    #[test]
    fn a_function_is_known_or_kept_as_it_can_be_printed() {
        let names = NameTables::default();
        assert_eq!(function_name(&names, b"AllReduce\0x"), "AllReduce");
        assert_eq!(function_name(&names, b"All\x1bRed\xc3uce\0"), "AllReduce");
        assert_eq!(function_name(&names, b""), "");
    }
}
