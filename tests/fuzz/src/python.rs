//! What is done with an interpreter's memory.
//!
//! An input is the address of `_PyRuntime` (8 bytes), the minor version that its file claims (1), and pieces of memory:
//! address (8), length (2), and as many bytes. Seeds are what was read of real interpreters
//! (`examples/python-seeds.rs`).

use std::collections::BTreeMap;

use cpython::{
    MAX_FRAMES, MAX_THREADS, Memory, Python, Statics, Unreadable, Version, Walker, interned, shipped,
};

/// Pieces of memory by address.
#[derive(Debug, Default)]
pub struct Pieces(BTreeMap<u64, Vec<u8>>);

impl Pieces {
    /// Those of an input, and the last one's bytes.
    pub(crate) fn of(mut input: &[u8]) -> (Self, Vec<u8>) {
        let (mut pieces, mut last) = (Self::default(), Vec::new());
        while let Some((address, tail)) = input.split_first_chunk::<8>() {
            let Some((length, tail)) = tail.split_first_chunk::<2>() else { break };
            let (bytes, tail) = tail.split_at(tail.len().min(usize::from(u16::from_le_bytes(*length))));
            last = bytes.to_vec();
            pieces.0.insert(u64::from_le_bytes(*address), bytes.to_vec());
            input = tail;
        }
        (pieces, last)
    }
}

impl Memory for Pieces {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let mut filled = 0;
        while filled < into.len() {
            let at = address.checked_add(filled as u64).ok_or(Unreadable(address))?;
            let (start, bytes) = self.0.range(..=at).next_back().ok_or(Unreadable(at))?;
            let from = usize::try_from(at - start).map_err(|_| Unreadable(at))?;
            let found = bytes.get(from..).filter(|found| !found.is_empty()).ok_or(Unreadable(at))?;
            let length = found.len().min(into.len() - filled);
            into[filled..filled + length].copy_from_slice(&found[..length]);
            filled += length;
        }
        Ok(())
    }
}

/// The input for [`use_memory`] of what was read of an interpreter.
#[must_use]
pub fn input_of(runtime: u64, version: Version, pieces: &BTreeMap<u64, Vec<u8>>) -> Vec<u8> {
    let mut input = runtime.to_le_bytes().to_vec();
    input.push(version.minor);
    input.extend(packed(pieces));
    input
}

/// Pieces of memory as they stand in an input.
#[must_use]
pub fn packed(pieces: &BTreeMap<u64, Vec<u8>>) -> Vec<u8> {
    let mut input = Vec::new();
    for (address, bytes) in pieces {
        for (number, bytes) in bytes.chunks(usize::from(u16::MAX)).enumerate() {
            input.extend((address + number as u64 * u64::from(u16::MAX)).to_le_bytes());
            input.extend((bytes.len() as u16).to_le_bytes());
            input.extend(bytes);
        }
    }
    input
}

/// Walks all threads of the interpreter and names their frames. That nothing is known is fine; the fuzzer looks for
/// panics, time and memory.
///
/// # Panics
/// If it takes too long, or gives more than its bounds allow.
pub fn use_memory(input: &[u8]) {
    super::in_time(input.len(), || {
        let _unknown = walk(input);
        let _none = find_interned(input);
    });
}

/// Where the dictionary of interned strings is: of an input whose first piece is the interpreter's variables, and whose
/// `_PyRuntime` is in the place of `PyDict_Type`.
#[must_use]
pub fn find_interned(input: &[u8]) -> Option<u64> {
    let (dict_type, rest) = input.split_first_chunk::<8>()?;
    let (minor, rest) = rest.split_first()?;
    let (pieces, _) = Pieces::of(rest);
    let (start, bytes) = pieces.0.first_key_value()?;
    let zeroed = *start..start.checked_add(bytes.len() as u64)?;
    let statics = Statics { dict_type: u64::from_le_bytes(*dict_type), zeroed: zeroed.clone() };
    let found = interned(&shipped(Version::new(3, *minor))?, &pieces, &statics)?;
    assert!(zeroed.contains(&found));
    Some(found)
}

/// Frames that were named.
#[must_use]
pub fn walk(input: &[u8]) -> Option<usize> {
    let (runtime, rest) = input.split_first_chunk::<8>()?;
    let (minor, rest) = rest.split_first()?;
    let (pieces, _) = Pieces::of(rest);
    let python = Python::at(&pieces, u64::from_le_bytes(*runtime), Some(Version::new(3, *minor))).ok()?;
    let mut walker = Walker::new(python, &pieces);
    let threads = walker.threads().ok()?;
    assert!(threads.len() <= MAX_THREADS);
    let mut named = 0;
    for thread in threads {
        let stack = walker.stack(thread);
        assert!(stack.frames.len() <= MAX_FRAMES);
        for frame in stack.frames {
            let Ok(frame) = walker.frame(frame) else { continue };
            assert!(frame.function.chars().count() <= 4096 && frame.file.chars().count() <= 4096);
            named += 1;
        }
    }
    Some(named)
}
