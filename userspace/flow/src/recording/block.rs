//! A block: the unit in which a recording is written, checked, found and skipped.
//!
//! ```text
//! header  48 bytes, little-endian, with a checksum of its own: the next block is found behind a damaged one
//! index   not compressed: the communicators and processes that the block is about
//! body    compressed: records by columns, or JSON
//! ```

use std::io::{self, Read as _, Write as _};

use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};

/// Length of a block's header, in bytes.
pub const HEADER_BYTES: usize = 48;

/// Bytes of a body at most, before it is compressed: the memory that a reader takes for a block.
pub const MAX_BODY: usize = 16 << 20;

/// Bytes of an index at most.
pub const MAX_INDEX: usize = 64 << 10;

/// Deflate's level: on real recordings higher ones gain 3 % and take twice the time.
const LEVEL: u32 = 3;

/// Content of a block. A block of another number is of a newer minor version: it is skipped, and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// JSON: what is recorded, where, and how; the first block of a segment.
    Session,
    /// JSON: the meaning of records of further cookies.
    Bindings,
    /// Records, in the order in which they came.
    Records,
    /// JSON: what happened between the records before and those after.
    Event,
    /// JSON: the session's report. The recording is whole.
    End,
    Unknown(u16),
}

impl BlockKind {
    fn number(self) -> u16 {
        match self {
            Self::Session => 1,
            Self::Bindings => 2,
            Self::Records => 3,
            Self::Event => 4,
            Self::End => 5,
            Self::Unknown(number) => number,
        }
    }

    fn of(number: u16) -> Self {
        [Self::Session, Self::Bindings, Self::Records, Self::Event, Self::End]
            .into_iter()
            .find(|kind| kind.number() == number)
            .unwrap_or(Self::Unknown(number))
    }
}

/// Header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    pub kind: BlockKind,
    /// The block has records that are needed to understand later ones: a reader that begins later reads this
    /// block too.
    pub is_lasting: bool,
    pub index_bytes: u32,
    /// Bytes of the body as it stands, compressed.
    pub body_bytes: u32,
    /// Bytes of the body before it was compressed.
    pub raw_bytes: u32,
    /// Records in the block.
    pub records: u32,
    /// Time of the earliest record, and in `last_ns` of the latest one, in nanoseconds of the recording
    /// host's `CLOCK_MONOTONIC`; 0 without records.
    pub first_ns: u64,
    pub last_ns: u64,
    /// CRC-32 of index and body.
    pub checksum: u32,
}

impl BlockHeader {
    /// Every header begins with these bytes.
    pub const MAGIC: [u8; 4] = *b"nfbk";

    /// Reads the header at the beginning of these bytes; `None` if there is none, or if its own checksum is
    /// wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (bytes, checksum) = bytes.get(..HEADER_BYTES)?.split_last_chunk::<4>()?;
        if bytes.first_chunk() != Some(&Self::MAGIC)
            || crc32fast::hash(bytes) != u32::from_le_bytes(*checksum)
        {
            return None;
        }
        let u16_at = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let u32_at = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(Self {
            kind: BlockKind::of(u16_at(4)?),
            is_lasting: u16_at(6)? & 1 != 0,
            index_bytes: u32_at(8)?,
            body_bytes: u32_at(12)?,
            raw_bytes: u32_at(16)?,
            records: u32_at(20)?,
            first_ns: u64_at(24)?,
            last_ns: u64_at(32)?,
            checksum: u32_at(40)?,
        })
    }

    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Self::MAGIC.to_vec();
        bytes.extend(self.kind.number().to_le_bytes());
        bytes.extend(u16::from(self.is_lasting).to_le_bytes());
        for number in [self.index_bytes, self.body_bytes, self.raw_bytes, self.records] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.first_ns.to_le_bytes());
        bytes.extend(self.last_ns.to_le_bytes());
        bytes.extend(self.checksum.to_le_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// Returns the bytes of index and body; `None` where they are more than any block has.
    pub fn rest_bytes(&self) -> Option<usize> {
        let (index, body) = (self.index_bytes as usize, self.body_bytes as usize);
        (index <= MAX_INDEX && body <= MAX_BODY + MAX_BODY / 8).then_some(index + body)
    }
}

/// Description of a block, for [`append_block`].
#[derive(Clone, Copy, Debug)]
pub struct BlockAbout<'a> {
    pub kind: BlockKind,
    pub is_lasting: bool,
    pub records: u32,
    pub first_ns: u64,
    pub last_ns: u64,
    pub index: &'a [u8],
}

impl BlockAbout<'_> {
    /// Describes a block of JSON, which has no time.
    pub fn json(kind: BlockKind) -> Self {
        Self { kind, is_lasting: false, records: 0, first_ns: 0, last_ns: 0, index: &[] }
    }
}

/// Appends a block to `bytes`. An index or a body larger than [`MAX_INDEX`] or [`MAX_BODY`] is an error, and
/// nothing is appended.
pub fn append_block(bytes: &mut Vec<u8>, about: &BlockAbout<'_>, body: &[u8]) -> io::Result<()> {
    if about.index.len() > MAX_INDEX || body.len() > MAX_BODY {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than a block of a recording can be"));
    }
    let begin = bytes.len();
    bytes.resize(begin + HEADER_BYTES, 0);
    bytes.extend_from_slice(about.index);
    let mut encoder = DeflateEncoder::new(&mut *bytes, Compression::new(LEVEL));
    encoder.write_all(body)?;
    encoder.finish()?;
    let rest = bytes.get(begin + HEADER_BYTES..).unwrap_or_default();
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let header = BlockHeader {
        kind: about.kind,
        is_lasting: about.is_lasting,
        index_bytes: length(about.index.len()),
        body_bytes: length(rest.len() - about.index.len()),
        raw_bytes: length(body.len()),
        records: about.records,
        first_ns: about.first_ns,
        last_ns: about.last_ns,
        checksum: crc32fast::hash(rest),
    };
    bytes.splice(begin..begin + HEADER_BYTES, header.to_bytes());
    Ok(())
}

/// A block whose bytes are all there, and are those that were written.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    pub header: BlockHeader,
    pub index: &'a [u8],
    body: &'a [u8],
}

impl<'a> Block<'a> {
    /// Checks a block. `rest`: index and body. `None` if they are not the bytes that were written.
    pub fn checked(header: BlockHeader, rest: &'a [u8]) -> Option<Self> {
        let is_whole = Some(rest.len()) == header.rest_bytes() && crc32fast::hash(rest) == header.checksum;
        let (index, body) = rest.split_at_checked(header.index_bytes as usize).filter(|_| is_whole)?;
        Some(Self { header, index, body })
    }

    /// Replaces the content of `raw` by the body as it was before it was compressed; `None` if it is no body.
    pub fn inflate(&self, raw: &mut Vec<u8>) -> Option<()> {
        let expected = self.header.raw_bytes as usize;
        raw.clear();
        if expected > MAX_BODY {
            return None;
        }
        DeflateDecoder::new(self.body).take(expected as u64 + 1).read_to_end(raw).ok()?;
        (raw.len() == expected).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: BlockAbout<'_> = BlockAbout {
        kind: BlockKind::Records,
        is_lasting: true,
        records: 7,
        first_ns: 1 << 40,
        last_ns: (1 << 40) + 5,
        index: b"who",
    };

    fn block() -> Vec<u8> {
        let mut bytes = Vec::new();
        append_block(&mut bytes, &ABOUT, &b"the same again and again, ".repeat(100)).unwrap();
        bytes
    }

    fn read(bytes: &[u8]) -> Option<(BlockHeader, Vec<u8>)> {
        let header = BlockHeader::from_bytes(bytes)?;
        let block = Block::checked(header, bytes.get(HEADER_BYTES..)?)?;
        assert_eq!(block.index, b"who");
        let mut raw = b"what was there before".to_vec();
        block.inflate(&mut raw)?;
        Some((header, raw))
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = block();
        let (header, raw) = read(&bytes).unwrap();
        assert_eq!(raw, b"the same again and again, ".repeat(100));
        assert!(bytes.len() < 150, "{}", bytes.len());
        let BlockHeader { kind, is_lasting, records, first_ns, last_ns, .. } = header;
        assert_eq!(
            (kind, is_lasting, records, first_ns, last_ns),
            (BlockKind::Records, true, 7, 1 << 40, (1 << 40) + 5)
        );
        for number in 0..20 {
            assert_eq!(BlockKind::of(number).number(), number);
        }
    }

    #[test]
    fn no_bit_can_change_and_no_byte_be_missing() {
        let bytes = block();
        for at in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[at / 8] ^= 1 << (at % 8);
            assert_eq!(read(&changed), None, "bit {at}");
        }
        for len in 0..bytes.len() {
            assert_eq!(read(&bytes[..len]), None, "cut at {len}");
        }
    }

    #[test]
    fn a_body_that_inflates_to_more_than_it_says_is_refused() {
        let bytes = block();
        let header = BlockHeader::from_bytes(&bytes).unwrap();
        let mut raw = Vec::new();
        for raw_bytes in [0, header.raw_bytes - 1, header.raw_bytes + 1, u32::MAX] {
            let header = BlockHeader { raw_bytes, ..header };
            let block = Block::checked(header, &bytes[HEADER_BYTES..]).unwrap();
            assert_eq!(block.inflate(&mut raw), None);
            assert!(raw.len() <= header.raw_bytes as usize + 1);
        }
        let mut bytes = Vec::new();
        assert!(append_block(&mut bytes, &ABOUT, &vec![0; MAX_BODY + 1]).is_err() && bytes.is_empty());
    }
}
