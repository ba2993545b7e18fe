//! Budgets: how much of a file one caller may read and how much work it may cause.

use super::{Error, ErrorKind};

/// Bytes that one resolution may read. NCCL 2.32.3 needs 7 MB, and 28 MB when all of its units have to be
/// searched.
const DEFAULT_BYTES: u64 = 512 << 20;
/// Debugging entries that one resolution may visit. NCCL 2.32.3 needs 40 thousand, and 0.7 million when all
/// of its units have to be searched.
const DEFAULT_ENTRIES: u64 = 20_000_000;
/// Memory that the structures which one resolution derives from these bytes may take. NCCL 2.32.3 needs 30 MB
/// when all of its units have to be searched.
const DEFAULT_MEMORY: u64 = 256 << 20;

/// Rest of the bytes, the memory and the work allowed for one resolution.
///
/// Counted, not timed, so that the same file always gives the same answer.
#[derive(Clone, Debug)]
pub struct Budget {
    bytes: u64,
    entries: u64,
    memory: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { bytes: DEFAULT_BYTES, entries: DEFAULT_ENTRIES, memory: DEFAULT_MEMORY }
    }
}

impl Budget {
    /// Creates a budget of another size: bytes read and debugging entries visited.
    pub fn new(bytes: u64, entries: u64) -> Self {
        Self { bytes, entries, memory: DEFAULT_MEMORY }
    }

    /// Returns the bytes that may still be read.
    pub fn bytes_left(&self) -> u64 {
        self.bytes
    }

    pub fn take_bytes(&mut self, wanted: u64, place: &str) -> Result<(), Error> {
        take(&mut self.bytes, wanted, place, || format!("{wanted} more bytes exceed the reading limit"))
    }

    /// Takes `wanted` bytes of memory, held until the library is resolved.
    pub fn take_memory(&mut self, wanted: u64, place: &str) -> Result<(), Error> {
        take(&mut self.memory, wanted, place, || {
            format!("{wanted} more bytes of memory for what was derived of it exceed the limit")
        })
    }

    pub fn take_entries(&mut self, wanted: u64, place: &str) -> Result<(), Error> {
        let what = "more debugging entries than the limit of work allows";
        take(&mut self.entries, wanted, place, || what.to_owned())
    }
}

fn take(left: &mut u64, wanted: u64, place: &str, what: impl FnOnce() -> String) -> Result<(), Error> {
    let rest = left.checked_sub(wanted);
    *left = rest.ok_or_else(|| Error::new(ErrorKind::TooLarge, place, what()))?;
    Ok(())
}
