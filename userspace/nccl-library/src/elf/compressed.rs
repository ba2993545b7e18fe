//! Sections whose contents are stored compressed, as debugging information in distributions' packages is: by zlib
//! or zstd with a header (`SHF_COMPRESSED`, ELF's gABI), or named `.zdebug_…`, as binutils did before.

use std::{io::Read, sync::OnceLock};

use object::{LittleEndian as Little, elf, pod};
use ruzstd::decoding::StreamingDecoder;

use super::{Budget, ErrorKind};

/// Bytes of the header of a section named `.zdebug_…`: `ZLIB`, and the size, big-endian.
const GNU_HEADER: usize = 12;
/// Bytes of the header of a compressed section.
pub(super) const HEADER: usize = size_of::<elf::CompressionHeader64<Little>>();
/// Maximum bytes of a compressed section's contents: more than any of NCCL's.
const MAX_INFLATED: u64 = 128 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Zlib,
    Zstd,
    Other(u32),
}

/// How a section's contents are stored.
#[derive(Debug)]
pub(super) struct Compressed {
    format: Format,
    /// Place and bytes in the file, without the header.
    offset: u64,
    length: u64,
    size: u64,
    /// The contents, once somebody has asked for them.
    contents: OnceLock<Vec<u8>>,
}

/// Reason why contents cannot be had.
pub(super) type Refusal = (ErrorKind, String);

impl Compressed {
    /// Reads the header of a section with `SHF_COMPRESSED`, which is stored in `length` bytes at `offset`.
    pub(super) fn with_header(header: &[u8], offset: u64, length: u64) -> Option<Self> {
        let (header, _) = pod::from_bytes::<elf::CompressionHeader64<Little>>(header).ok()?;
        let format = match header.ch_type.get(Little) {
            elf::ELFCOMPRESS_ZLIB => Format::Zlib,
            elf::ELFCOMPRESS_ZSTD => Format::Zstd,
            other => Format::Other(other),
        };
        Self::behind(HEADER, format, offset, length, header.ch_size.get(Little))
    }

    /// Reads the header of a section named `.zdebug_…`.
    pub(super) fn the_old_way(header: &[u8], offset: u64, length: u64) -> Option<Self> {
        let size = header.strip_prefix(b"ZLIB")?.first_chunk()?;
        Self::behind(GNU_HEADER, Format::Zlib, offset, length, u64::from_be_bytes(*size))
    }

    fn behind(header: usize, format: Format, offset: u64, length: u64, size: u64) -> Option<Self> {
        let header = header as u64;
        let (offset, length) = (offset.checked_add(header)?, length.checked_sub(header)?);
        Some(Self { format, offset, length, size, contents: OnceLock::new() })
    }

    /// Returns the bytes of the contents, as the header states them.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Returns place and bytes of what is to be read from the file for [`Self::contents`]. `None`: the
    /// contents are there already.
    pub(super) fn wanted(&self) -> Result<Option<(u64, u64)>, Refusal> {
        match self.format {
            _ if self.contents.get().is_some() => Ok(None),
            Format::Other(number) => Err((
                ErrorKind::Unsupported,
                format!("the section is compressed by a method (number {number}) that is not known"),
            )),
            _ if self.size > MAX_INFLATED => Err((
                ErrorKind::TooLarge,
                format!("{} bytes, once decompressed, are more than the limit of {MAX_INFLATED}", self.size),
            )),
            _ => Ok(Some((self.offset, self.length))),
        }
    }

    /// Decompresses what was read from the file. Takes the memory from the budget.
    pub(super) fn inflate(&self, stored: &[u8], place: &str, budget: &mut Budget) -> Result<(), Refusal> {
        let too_large = |_| (ErrorKind::TooLarge, format!("no memory for {} bytes", self.size));
        budget.take_memory(self.size, place).map_err(|error| (ErrorKind::TooLarge, error.to_string()))?;
        let size = usize::try_from(self.size).unwrap_or(usize::MAX);
        let mut contents = Vec::new();
        contents.try_reserve_exact(size).map_err(too_large)?;
        let malformed = |what: &dyn std::fmt::Display| {
            (ErrorKind::Malformed, format!("its compressed contents cannot be read: {what}"))
        };
        // One byte more tells of contents that are longer than they say.
        let most = self.size.saturating_add(1);
        match self.format {
            Format::Zlib => {
                let mut decoder = flate2::read::ZlibDecoder::new(stored).take(most);
                decoder.read_to_end(&mut contents).map_err(|error| malformed(&error))?;
            }
            Format::Zstd => {
                let decoder = StreamingDecoder::new(stored).map_err(|error| malformed(&error))?;
                decoder.take(most).read_to_end(&mut contents).map_err(|error| malformed(&error))?;
            }
            Format::Other(_) => return Err(malformed(&"by an unknown method")),
        }
        if contents.len() != size {
            return Err(malformed(&format_args!("they are not the {size} bytes that its header says")));
        }
        let _ = self.contents.set(contents);
        Ok(())
    }

    pub(super) fn contents(&self) -> &[u8] {
        self.contents.get().map_or(&[], |contents| contents)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn header(kind: u32, size: u64) -> Vec<u8> {
        let mut header = Vec::from(kind.to_le_bytes());
        header.extend([0; 4]);
        header.extend(size.to_le_bytes());
        header.extend(1u64.to_le_bytes());
        header
    }

    fn zlib(contents: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(contents).unwrap();
        encoder.finish().unwrap()
    }

    fn inflated(compressed: &Compressed, stored: &[u8]) -> Result<Vec<u8>, Refusal> {
        compressed.wanted()?;
        compressed.inflate(stored, "a section", &mut Budget::default())?;
        Ok(compressed.contents().to_vec())
    }

    #[test]
    fn contents_are_those_that_were_compressed() {
        let contents = b"debugging information, again and again and again".repeat(100);
        let stored = zlib(&contents);
        let size = contents.len() as u64;
        let by_header = Compressed::with_header(&header(elf::ELFCOMPRESS_ZLIB, size), 100, 1000).unwrap();
        assert_eq!((by_header.size(), by_header.wanted().unwrap()), (size, Some((124, 976))));
        assert_eq!(inflated(&by_header, &stored).unwrap(), contents);
        assert_eq!(by_header.wanted().unwrap(), None, "they are there");
        let old = [b"ZLIB".as_slice(), &size.to_be_bytes()].concat();
        let old = Compressed::the_old_way(&old, 100, 1000).unwrap();
        assert_eq!(old.wanted().unwrap(), Some((112, 988)));
        assert_eq!(inflated(&old, &stored).unwrap(), contents);
    }

    #[test]
    fn contents_of_another_size_damaged_or_endless_ones_are_refused() {
        let bomb = zlib(&vec![0; 64 << 20]);
        let of = |size| Compressed::with_header(&header(elf::ELFCOMPRESS_ZLIB, size), 0, 1000).unwrap();
        let refused = |size, stored: &[u8]| inflated(&of(size), stored).unwrap_err();
        assert!(matches!(refused(1000, &bomb), (ErrorKind::Malformed, _)));
        assert!(matches!(refused(u64::MAX, &bomb), (ErrorKind::TooLarge, _)));
        assert!(matches!(refused(1000, &zlib(b"short")), (ErrorKind::Malformed, _)));
        assert!(matches!(refused(1000, b"no zlib at all"), (ErrorKind::Malformed, _)));
        for kind in [elf::ELFCOMPRESS_ZSTD, 7] {
            let other = Compressed::with_header(&header(kind, 10), 0, 1000).unwrap();
            assert!(inflated(&other, &zlib(b"0123456789")).is_err());
        }
        assert!(Compressed::with_header(&header(1, 10), 0, 23).is_none(), "shorter than its header");
        assert!(Compressed::with_header(&header(1, 10)[..20], 0, 1000).is_none());
        assert!(Compressed::the_old_way(b"GZIP\0\0\0\0\0\0\0\x10", 0, 1000).is_none());
    }

    #[test]
    fn memory_is_taken_from_the_budget() {
        let mut budget = Budget::default();
        let of = || Compressed::with_header(&header(1, 100 << 20), 0, 1000).unwrap();
        let stored = zlib(&vec![7; 100 << 20]);
        assert_eq!(of().inflate(&stored, "a section", &mut budget), Ok(()));
        assert_eq!(of().inflate(&stored, "a section", &mut budget), Ok(()));
        assert!(matches!(of().inflate(&stored, "a section", &mut budget), Err((ErrorKind::TooLarge, _))));
    }
}
