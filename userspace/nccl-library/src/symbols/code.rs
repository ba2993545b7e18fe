//! Machine code of functions that were resolved, as it was when their addresses were found.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{DebugFiles, Function, Request, Resolution, driver_request, resolve_exports, resolve_with};
use crate::{
    elf::{Budget, Error, FileOffset, Image},
    hex,
};

/// Bytes that are kept from a probe's place on: the longest instruction of x86-64.
pub const PLACE_BYTES: u64 = 15;
/// Functions in which calls of hooks are looked for (src/transport/net.cc): their code is kept whole.
const WHOLE: [&str; 2] = ["sendProxyProgress", "recvProxyProgress"];
/// Most bytes that are kept of one function.
const MAX_FUNCTION: u64 = 64 << 10;
/// Most bytes that are kept of all functions.
const MAX_CODE: u64 = 4 << 20;

/// Parts of a file's machine code, by their place in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Code(BTreeMap<u64, Bytes>);

#[derive(Clone, PartialEq, Eq)]
struct Bytes(Box<[u8]>);

/// A resolution, and the code of its functions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Resolved {
    pub resolution: Resolution,
    pub code: Code,
}

impl Resolved {
    /// Looks up a request, as [`resolve_with`].
    ///
    /// # Errors
    /// When the symbol table cannot be read.
    pub fn of(image: &Image, request: &Request, debug_files: &DebugFiles) -> Result<Self, Error> {
        Ok(Self::with_code(image, resolve_with(image, request, debug_files)?))
    }

    /// Looks up what is exported by CUDA's driver.
    ///
    /// # Errors
    /// When the symbol table cannot be read.
    pub fn of_driver(image: &Image) -> Result<Self, Error> {
        Ok(Self::with_code(image, resolve_exports(image, &driver_request())?))
    }

    fn with_code(image: &Image, resolution: Resolution) -> Self {
        let code = Code::read(image, &resolution);
        Self { resolution, code }
    }
}

impl Code {
    /// Reads the code of the resolution's functions, without what cannot be read.
    pub fn read(image: &Image, resolution: &Resolution) -> Self {
        let mut budget = Budget::new(MAX_CODE, 0);
        let mut parts = BTreeMap::new();
        for function in resolution.functions.values().flatten() {
            if let Ok(bytes) = image.loaded_bytes(function.vaddr, wanted(function), &mut budget) {
                parts.entry(function.file_offset.0).or_insert(Bytes(bytes));
            }
        }
        Self(parts)
    }

    /// Returns the bytes from `at` on that are known, at most `size` of them; `None` if the first is not.
    pub fn at(&self, at: FileOffset, size: u64) -> Option<&[u8]> {
        // Functions can overlap: the part that begins last before it need not be the longest.
        let before = self.0.range(..=at.0).rev().take(8);
        let rest = before.filter_map(|(start, part)| {
            let within = usize::try_from(at.0 - start).ok()?;
            part.0.get(within..).filter(|rest| !rest.is_empty())
        });
        let longest = rest.max_by_key(|rest| rest.len())?;
        longest.get(..longest.len().min(usize::try_from(size).ok()?))
    }

    /// Returns place and length of all parts, in the order of their places: for a check against the file's
    /// size.
    pub fn parts(&self) -> impl Iterator<Item = (FileOffset, u64)> {
        self.0.iter().map(|(at, part)| (FileOffset(*at), part.0.len() as u64))
    }
}

fn wanted(function: &Function) -> u64 {
    let to_place = function.uprobe_offset.saturating_add(PLACE_BYTES);
    let whole = if WHOLE.contains(&function.name.as_str()) { function.size } else { 0 };
    whole.max(to_place).min(MAX_FUNCTION)
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = hex::decode(&text).map(|bytes| Self(bytes.into()));
        bytes.ok_or_else(|| de::Error::custom("machine code is an even number of hex digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(parts: &[(u64, &[u8])]) -> Code {
        Code(parts.iter().map(|(at, bytes)| (*at, Bytes((*bytes).into()))).collect())
    }

    #[test]
    fn bytes_are_found_inside_parts_that_may_overlap() {
        let code = code(&[(10, &[1, 2, 3, 4, 5, 6]), (12, &[3, 4]), (100, &[9])]);
        assert_eq!(code.at(FileOffset(10), 2), Some(&[1, 2][..]));
        assert_eq!(code.at(FileOffset(12), 15), Some(&[3, 4, 5, 6][..]), "the longer of two");
        assert_eq!(code.at(FileOffset(100), 15), Some(&[9][..]));
        assert_eq!(
            (code.at(FileOffset(9), 1), code.at(FileOffset(16), 1), code.at(FileOffset(101), 1)),
            (None, None, None)
        );
    }

    #[test]
    fn text_goes_both_ways_and_what_is_no_hex_is_refused() {
        let made = code(&[(10, &[0, 255, 0x1c])]);
        let text = serde_json::to_string(&made).unwrap();
        assert_eq!(text, r#"{"10":"00ff1c"}"#);
        assert_eq!(serde_json::from_str::<Code>(&text).unwrap(), made);
        for wrong in [r#"{"10":"0"}"#, r#"{"10":"0g"}"#, r#"{"10":"é"}"#] {
            assert!(serde_json::from_str::<Code>(wrong).is_err(), "{wrong}");
        }
    }
}
