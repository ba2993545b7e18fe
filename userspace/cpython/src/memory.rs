//! Bounded reads of a process's memory.

use std::{cell::Cell, collections::HashMap, fmt, hash::BuildHasher, time::Instant};

use crate::Unknown;

/// No memory at this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable(pub u64);

/// The memory of a process.
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

/// Most bytes of one read.
const MAX_AT_ONCE: usize = 4 << 20;
/// Most pieces that are copied together; the time is looked at after each such batch.
const MAX_PIECES: usize = 1024;

/// Work that one look at a process may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub reads: u32,
    pub bytes: u64,
    pub until: Option<Instant>,
    /// Sentences on a look that takes more reads or bytes, and on one that takes longer.
    pub too_much: &'static str,
    pub too_long: &'static str,
}

/// A process's memory, and the rest of the work allowed.
pub struct Reader<'m> {
    memory: &'m dyn Memory,
    limits: Limits,
    reads: Cell<u32>,
    bytes: Cell<u64>,
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl<'m> Reader<'m> {
    pub fn new(memory: &'m dyn Memory, limits: Limits) -> Self {
        Self { memory, limits, reads: Cell::new(limits.reads), bytes: Cell::new(limits.bytes) }
    }

    pub fn memory(&self) -> &'m dyn Memory {
        self.memory
    }

    fn charge(&self, reads: usize, bytes: usize) -> Result<(), Unknown> {
        let too_much = || Unknown::TooMuch(self.limits.too_much);
        let reads = u32::try_from(reads).ok().and_then(|reads| self.reads.get().checked_sub(reads));
        let bytes = self.bytes.get().checked_sub(bytes as u64);
        self.reads.set(reads.ok_or_else(too_much)?);
        self.bytes.set(bytes.ok_or_else(too_much)?);
        self.has_time()
    }

    /// Checks that there is still time.
    pub fn has_time(&self) -> Result<(), Unknown> {
        let is_over = self.limits.until.is_some_and(|until| Instant::now() > until);
        if is_over { Err(Unknown::TooMuch(self.limits.too_long)) } else { Ok(()) }
    }

    /// Reads `length` bytes, in parts that are not too long for one read.
    pub fn bytes(&self, address: u64, length: usize) -> Result<Vec<u8>, Unknown> {
        self.charge(length.div_ceil(MAX_AT_ONCE).max(1), length)?;
        let mut bytes = vec![0; length];
        let mut at = address;
        for part in bytes.chunks_mut(MAX_AT_ONCE) {
            self.memory.read(at, part).map_err(|Unreadable(address)| Unknown::Unreadable(address))?;
            at = at.checked_add(part.len() as u64).ok_or(Unknown::Unreadable(at))?;
        }
        Ok(bytes)
    }

    /// Reads a struct's bytes.
    pub fn record(&self, address: u64, length: u32) -> Result<Record, Unknown> {
        Ok(Record { address, bytes: self.bytes(address, length as usize)? })
    }

    /// Reads each of `pieces`, as far as that is possible.
    pub fn gather(&self, pieces: &[(u64, usize)]) -> Result<Vec<Option<Vec<u8>>>, Unknown> {
        let mut all = Vec::with_capacity(pieces.len());
        for pieces in pieces.chunks(MAX_PIECES) {
            self.charge(
                pieces.len(),
                pieces.iter().map(|(_, length)| *length).fold(0, usize::saturating_add),
            )?;
            all.extend(self.memory.copies(pieces));
        }
        Ok(all)
    }

    /// Reads `N` bytes at `base + offset`.
    pub(crate) fn array<const N: usize>(&self, base: u64, offset: u32) -> Result<[u8; N], Unknown> {
        self.charge(1, N)?;
        let mut bytes = [0; N];
        let read = self.memory.read(add(base, offset)?, &mut bytes);
        read.map(|()| bytes).map_err(|Unreadable(address)| Unknown::Unreadable(address))
    }

    pub(crate) fn u64(&self, base: u64, offset: u32) -> Result<u64, Unknown> {
        self.array(base, offset).map(u64::from_le_bytes)
    }

    /// Reads a struct's bytes from `base` on, as far as its fields at these offsets reach (8 bytes each).
    pub(crate) fn fields(&self, base: u64, fields: &[u32]) -> Result<Record, Unknown> {
        /// Bytes that no struct exceeds whose fields are read at once.
        const MAX: u32 = 4096;
        let length = fields.iter().max().map_or(0, |last| last.saturating_add(8));
        if base == 0 || length > MAX {
            return Err(Unknown::Contradiction("a null pointer, or an offset without a struct"));
        }
        self.record(base, length)
    }
}

/// Bytes of a struct, and their address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub address: u64,
    pub bytes: Vec<u8>,
}

impl Record {
    pub fn u64(&self, offset: u32) -> u64 {
        self.field(offset).map_or(0, u64::from_le_bytes)
    }

    pub fn i64(&self, offset: u32) -> i64 {
        self.u64(offset).cast_signed()
    }

    pub fn u32(&self, offset: u32) -> u32 {
        self.field(offset).map_or(0, u32::from_le_bytes)
    }

    pub fn i32(&self, offset: u32) -> i32 {
        self.u32(offset).cast_signed()
    }

    pub fn u8(&self, offset: u32) -> u8 {
        self.bytes.get(offset as usize).copied().unwrap_or(0)
    }

    /// Reads a C++ `bool`; `None` if the byte is none.
    pub fn bool(&self, offset: u32) -> Option<bool> {
        [false, true].get(usize::from(self.u8(offset))).copied()
    }

    pub fn slice(&self, offset: u32, length: usize) -> Option<&[u8]> {
        let from = offset as usize;
        self.bytes.get(from..from.checked_add(length)?)
    }

    fn field<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        self.bytes.get(offset as usize..)?.first_chunk().copied()
    }
}

pub(crate) fn add(base: u64, offset: u32) -> Result<u64, Unknown> {
    base.checked_add(u64::from(offset)).ok_or(Unknown::Unreadable(base))
}
