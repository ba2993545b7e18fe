//! The NCCL version, from the string `NCCL version X.Y.Z+cudaA.B` that every build carries in `.rodata`.

use std::{fmt, str::FromStr};

use memchr::memmem;
use serde::{Deserialize, Serialize};

use crate::elf::{Budget, Error, Image};

const MARK: &[u8] = b"NCCL version ";
/// Most bytes of `.rodata` that are searched. The official libraries have up to 0.5 MB; a framework with NCCL
/// inside has more.
const MAX_SEARCHED: u64 = 64 << 20;
const CHUNK: u64 = 1 << 20;
/// Bytes that two chunks share: more than any version string has.
const OVERLAP: u64 = 64;

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NcclVersion {
    /// Major version: 2 for all that ncclflow knows.
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for NcclVersion {
    type Err = ();

    /// Parses a version as it is displayed.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut numbers = text.split('.').map(str::parse);
        match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch)), None) => Ok(Self { major, minor, patch }),
            _ => Err(()),
        }
    }
}

/// A version of NCCL, and of the CUDA that it was built for.
pub type Versions = (NcclVersion, (u32, u32));

/// Finds the versions stated in a library; `None` when the string is not there.
pub fn find_versions(image: &Image, budget: &mut Budget) -> Result<Option<Versions>, Error> {
    let Some(section) = image.section(".rodata") else { return Ok(None) };
    let mut found = None;
    image.for_each_piece(section, MAX_SEARCHED, [CHUNK, OVERLAP], budget, |_, bytes| {
        found = memmem::find_iter(bytes, MARK).find_map(|at| parse(&bytes[at + MARK.len()..]));
        found.is_none()
    })?;
    Ok(found)
}

fn parse(text: &[u8]) -> Option<Versions> {
    let (major, text) = number(text)?;
    let (minor, text) = number(text.strip_prefix(b".")?)?;
    let (patch, text) = number(text.strip_prefix(b".")?)?;
    // A pre-release has letters between the patch number and the CUDA version.
    let plus = text.iter().take(16).position(|byte| *byte == b'+')?;
    let (cuda_major, text) = number(text[plus..].strip_prefix(b"+cuda")?)?;
    let (cuda_minor, _) = number(text.strip_prefix(b".")?)?;
    Some((NcclVersion { major, minor, patch }, (cuda_major, cuda_minor)))
}

fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    let digits = text.iter().take(6).take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    Some((std::str::from_utf8(number).ok()?.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::{NcclVersion, parse};

    #[test]
    fn version_strings() {
        let version = |major, minor, patch| NcclVersion { major, minor, patch };
        assert_eq!(parse(b"2.27.5+cuda12.9\0x"), Some((version(2, 27, 5), (12, 9))));
        assert_eq!(parse(b"2.29.1-rc1+cuda13.0"), Some((version(2, 29, 1), (13, 0))));
        for text in
            [&b""[..], b"%d.%d", b"2.27.5", b"2.27.5+cuda12", b"2..5+cuda12.9", b"99999999.1.1+cuda1.1"]
        {
            assert_eq!(parse(text), None);
        }
    }
}
