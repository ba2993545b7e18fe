//! Bounded reads of an interpreter's memory.

use std::{cell::Cell, collections::HashMap, fmt, hash::BuildHasher};

use crate::Unknown;

/// No memory at this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable(pub u64);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing can be read at {:#x}", self.0)
    }
}

impl std::error::Error for Unreadable {}

/// The memory of a process that has an interpreter.
pub trait Memory {
    /// Fills `into` from `address` on, all of it or nothing.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable>;

    /// Copies these pieces (address, bytes). The result has one element for each, which is `None` if the
    /// piece cannot be read whole. For a memory that can make the copies together.
    fn copies(&self, pieces: &[(u64, usize)]) -> Vec<Option<Vec<u8>>> {
        let copy = |(at, bytes): &(u64, usize)| {
            let mut copy = vec![0; *bytes];
            self.read(*at, &mut copy).ok().map(|()| copy)
        };
        pieces.iter().map(copy).collect()
    }

    /// Begins another reading, which is to see what is there now. For a memory that keeps what it has read.
    fn renew(&self) {}
}

/// Memory made of addresses and the bytes there: for tests and fuzz targets.
impl<S: BuildHasher> Memory for HashMap<u64, Vec<u8>, S> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let found = self.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(address.checked_sub(*start)?).ok()?;
            bytes.get(from..from.checked_add(into.len())?)
        });
        into.copy_from_slice(found.ok_or(Unreadable(address))?);
        Ok(())
    }
}

/// Most reads of one walker; a real interpreter with 300 threads of 30 frames needs some 20 thousand.
const MAX_READS: u32 = 200_000;
/// Most bytes that one walker reads.
const MAX_BYTES: u64 = 64 << 20;

/// A process's memory, and the rest of the work allowed.
pub(crate) struct Reader<'m> {
    memory: &'m dyn Memory,
    reads: Cell<u32>,
    bytes: Cell<u64>,
}

impl<'m> Reader<'m> {
    pub(crate) fn new(memory: &'m dyn Memory) -> Self {
        Self { memory, reads: Cell::new(MAX_READS), bytes: Cell::new(MAX_BYTES) }
    }

    pub(crate) fn renew(&self) {
        self.memory.renew();
    }

    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unknown> {
        const TOO_MUCH: Unknown =
            Unknown::TooMuch("reading its Python takes more work than any real one does");
        let reads = self.reads.get().checked_sub(1).ok_or(TOO_MUCH)?;
        let bytes = self.bytes.get().checked_sub(into.len() as u64).ok_or(TOO_MUCH)?;
        self.reads.set(reads);
        self.bytes.set(bytes);
        self.memory.read(address, into).map_err(|Unreadable(address)| Unknown::Unreadable(address))
    }

    /// Reads `N` bytes at `base + offset`.
    pub(crate) fn bytes<const N: usize>(&self, base: u64, offset: u32) -> Result<[u8; N], Unknown> {
        let mut bytes = [0; N];
        self.read(add(base, offset)?, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn u64(&self, base: u64, offset: u32) -> Result<u64, Unknown> {
        self.bytes(base, offset).map(u64::from_le_bytes)
    }

    /// Reads a struct's bytes from `base` on, as far as its fields at these offsets reach (8 bytes each).
    pub(crate) fn record(&self, base: u64, fields: &[u32]) -> Result<Record, Unknown> {
        /// Bytes that no struct exceeds whose fields are read at once.
        const MAX: u32 = 4096;
        let length = fields.iter().max().map_or(0, |last| last.saturating_add(8));
        if base == 0 || length > MAX {
            return Err(Unknown::Contradiction("a null pointer, or an offset without a struct"));
        }
        let mut bytes = vec![0; length as usize];
        self.read(base, &mut bytes)?;
        Ok(Record(bytes))
    }
}

/// The bytes of a struct.
pub(crate) struct Record(Vec<u8>);

impl Record {
    pub(crate) fn u64(&self, offset: u32) -> u64 {
        self.field(offset).map_or(0, u64::from_le_bytes)
    }

    pub(crate) fn i32(&self, offset: u32) -> i32 {
        self.field(offset).map_or(0, i32::from_le_bytes)
    }

    pub(crate) fn u8(&self, offset: u32) -> u8 {
        self.0.get(offset as usize).copied().unwrap_or(0)
    }

    fn field<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        self.0.get(offset as usize..)?.first_chunk().copied()
    }
}

pub(crate) fn add(base: u64, offset: u32) -> Result<u64, Unknown> {
    base.checked_add(u64::from(offset)).ok_or(Unknown::Unreadable(base))
}
