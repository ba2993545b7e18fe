//! Bounded reads of a process's memory, many pieces at a time: a full ring has tens of thousands.

use std::{
    cell::Cell,
    collections::HashMap,
    hash::BuildHasher,
    time::{Duration, Instant},
};

use cpython::Unreadable;

use crate::Unknown;

/// The memory of a process that has torch loaded.
pub trait Memory: cpython::Memory {
    /// Reads all `pieces` (address, bytes), one after the other into one buffer; all of them or nothing. At
    /// most [`MAX_PIECES`], and together [`MAX_AT_ONCE`] bytes.
    fn gather(&self, pieces: &[(u64, usize)]) -> Result<Vec<u8>, Unreadable> {
        let mut bytes = vec![0; pieces.iter().map(|(_, length)| length).sum()];
        let mut rest = bytes.as_mut_slice();
        for (address, length) in pieces {
            let Some((into, tail)) = rest.split_at_mut_checked(*length) else { break };
            self.read(*address, into)?;
            rest = tail;
        }
        Ok(bytes)
    }
}

/// Memory made of addresses and the bytes there: for tests and fuzz targets.
impl<S: BuildHasher> Memory for HashMap<u64, Vec<u8>, S> {}

/// Most pieces of one call of [`Memory::gather`].
pub const MAX_PIECES: usize = 1024;
/// Most bytes of one call.
pub const MAX_AT_ONCE: usize = 4 << 20;

/// Most pieces that one look reads. A full ring of 65,536 entries has 400,000, and the data of torch's
/// libraries lead to some 100,000 objects.
const MAX_READS: u32 = 1 << 20;
/// Most bytes of one look: a ring of 65,536 entries, twice, and libraries' data.
const MAX_BYTES: u64 = 192 << 20;

/// End of the time that one look may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience(Instant);

impl Patience {
    /// Allows this time from now on.
    pub fn of(time: Duration) -> Self {
        Self(Instant::now() + time)
    }
}

impl Default for Patience {
    /// Allows enough: a full ring of 2,000 entries takes some tens of milliseconds.
    fn default() -> Self {
        Self::of(Duration::from_secs(10))
    }
}

/// A process's memory, and the rest of the work allowed.
pub(crate) struct Reader<'m> {
    memory: &'m dyn Memory,
    reads: Cell<u32>,
    bytes: Cell<u64>,
    patience: Patience,
}

impl<'m> Reader<'m> {
    pub(crate) fn new(memory: &'m dyn Memory, patience: Patience) -> Self {
        Self { memory, reads: Cell::new(MAX_READS), bytes: Cell::new(MAX_BYTES), patience }
    }

    pub(crate) fn memory(&self) -> &'m dyn Memory {
        self.memory
    }

    fn charge(&self, reads: usize, bytes: usize) -> Result<(), Unknown> {
        const TOO_MUCH: Unknown =
            Unknown::TooMuch("reading torch's notes takes more work than any real ones do");
        let reads = u32::try_from(reads).ok().and_then(|reads| self.reads.get().checked_sub(reads));
        let bytes = self.bytes.get().checked_sub(bytes as u64);
        self.reads.set(reads.ok_or(TOO_MUCH)?);
        self.bytes.set(bytes.ok_or(TOO_MUCH)?);
        self.has_time()
    }

    /// Checks that there is still time.
    pub(crate) fn has_time(&self) -> Result<(), Unknown> {
        let is_over = Instant::now() > self.patience.0;
        if is_over { Err(Unknown::TooMuch("reading torch's notes takes too long")) } else { Ok(()) }
    }

    /// Reads `length` bytes, in parts that are not too long for one call.
    pub(crate) fn bytes(&self, address: u64, length: usize) -> Result<Vec<u8>, Unknown> {
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
    pub(crate) fn record(&self, address: u64, length: u32) -> Result<Record, Unknown> {
        Ok(Record { address, bytes: self.bytes(address, length as usize)? })
    }

    /// Reads each of `pieces`, as far as that is possible.
    pub(crate) fn gather(&self, pieces: &[(u64, usize)]) -> Result<Vec<Option<Vec<u8>>>, Unknown> {
        let mut all = Vec::with_capacity(pieces.len());
        let mut rest = pieces;
        while !rest.is_empty() {
            let (mut count, mut bytes) = (0, 0);
            for (_, length) in rest.iter().take(MAX_PIECES) {
                if count > 0 && bytes + length > MAX_AT_ONCE {
                    break;
                }
                count += 1;
                bytes += length;
            }
            let (chunk, tail) = rest.split_at(count.min(rest.len()));
            rest = tail;
            self.charge(chunk.len(), bytes)?;
            if bytes <= MAX_AT_ONCE
                && let Ok(together) = self.memory.gather(chunk)
            {
                let mut left = together.as_slice();
                for (_, length) in chunk {
                    let (piece, tail) = left.split_at(left.len().min(*length));
                    all.push((piece.len() == *length).then(|| piece.to_vec()));
                    left = tail;
                }
            } else {
                // One of them cannot be read: each alone.
                for (address, length) in chunk {
                    all.push(match self.bytes(*address, *length) {
                        Ok(bytes) => Some(bytes),
                        Err(Unknown::Unreadable(_)) => None,
                        Err(why) => return Err(why),
                    });
                }
            }
        }
        Ok(all)
    }
}

/// Bytes of a struct, and their address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

const NEITHER: Unknown = Unknown::Contradiction("a value is neither there nor missing");

impl Record {
    pub(crate) fn u64(&self, offset: u32) -> u64 {
        self.field(offset).map_or(0, u64::from_le_bytes)
    }

    pub(crate) fn i64(&self, offset: u32) -> i64 {
        self.field(offset).map_or(0, i64::from_le_bytes)
    }

    pub(crate) fn u32(&self, offset: u32) -> u32 {
        self.field(offset).map_or(0, u32::from_le_bytes)
    }

    pub(crate) fn u8(&self, offset: u32) -> u8 {
        self.field(offset).map_or(0, |[byte]: [u8; 1]| byte)
    }

    /// Reads a C++ `bool`; `None` if the byte is none.
    pub(crate) fn bool(&self, offset: u32) -> Option<bool> {
        match self.u8(offset) {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Reads a `std::optional<int64_t>`.
    pub(crate) fn optional_i64(&self, offset: u32) -> Result<Option<i64>, Unknown> {
        let is_there = self.bool(offset.saturating_add(8)).ok_or(NEITHER)?;
        Ok(is_there.then(|| self.i64(offset)))
    }

    /// Reads a `std::optional<float>`.
    pub(crate) fn optional_f32(&self, offset: u32) -> Result<Option<f32>, Unknown> {
        let is_there = self.bool(offset.saturating_add(4)).ok_or(NEITHER)?;
        Ok(is_there.then(|| f32::from_bits(self.u32(offset))))
    }

    pub(crate) fn slice(&self, offset: u32, length: usize) -> Option<&[u8]> {
        let from = offset as usize;
        self.bytes.get(from..from.checked_add(length)?)
    }

    fn field<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        self.bytes.get(offset as usize..)?.first_chunk().copied()
    }
}
