//! Work that a look at torch's notes may take.

use std::time::{Duration, Instant};

use cpython::{Limits, Memory, Reader, Record};

use crate::Unknown;

/// End of the time that one look may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience(Instant);

impl Patience {
    /// Allows this time from now on.
    pub fn of(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    /// Begins a look at a process. A full ring of 65,536 entries has 400,000 pieces, which are read twice,
    /// and the data of torch's libraries lead to some 100,000 objects.
    pub(crate) fn reader(self, memory: &dyn Memory) -> Reader<'_> {
        let limits = Limits {
            reads: 1 << 20,
            bytes: 192 << 20,
            until: Some(self.0),
            too_much: "reading torch's notes takes more work than any real ones do",
            too_long: "reading torch's notes takes too long",
        };
        Reader::new(memory, limits)
    }
}

impl Default for Patience {
    /// Allows enough: a full ring of 2,000 entries takes some tens of milliseconds.
    fn default() -> Self {
        Self::of(Duration::from_secs(10))
    }
}

/// Reads a `std::optional` of a value of this size.
pub(crate) fn optional<T>(
    record: &Record,
    at: u32,
    size: u32,
    value: impl FnOnce() -> T,
) -> Result<Option<T>, Unknown> {
    let is_there = record.bool(at.saturating_add(size));
    let is_there = is_there.ok_or(Unknown::Contradiction("a value is neither there nor missing"))?;
    Ok(is_there.then(value))
}
