//! Facts about each collective of a communicator, by number.

use std::collections::BTreeMap;

/// Collectives stored together: their numbers are consecutive.
const CHUNK: usize = 32;

/// A collective as the first rank ran it, and the wall time at which any rank was first seen in it. Packed,
/// as there are many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed(4))]
pub(super) struct Collective {
    /// Index of the call.
    pub(super) call: u32,
    pub(super) first_seen: u64,
}

/// Collectives by number. Consecutive ones take 12 bytes each.
#[derive(Debug, Default)]
pub(super) struct ByNumber(BTreeMap<u64, Box<Chunk>>);

type Chunk = [Collective; CHUNK];

/// Marks an empty entry by the index of its call.
const NONE: Collective = Collective { call: u32::MAX, first_seen: 0 };

impl ByNumber {
    /// Memory of a chunk, about.
    pub(super) const CHUNK_BYTES: usize = size_of::<Chunk>() + 48;

    fn split(number: u64) -> (u64, usize) {
        // The remainder is small.
        (number / CHUNK as u64, usize::try_from(number % CHUNK as u64).unwrap_or(0))
    }

    /// Tells whether putting this number needs memory for a chunk.
    pub(super) fn needs_chunk(&self, number: u64) -> bool {
        !self.0.contains_key(&Self::split(number).0)
    }

    pub(super) fn get(&self, number: u64) -> Option<Collective> {
        let (chunk, at) = Self::split(number);
        self.0.get(&chunk)?.get(at).copied().filter(is_there)
    }

    pub(super) fn put(&mut self, number: u64, collective: Collective) {
        let (chunk, at) = Self::split(number);
        let chunk = self.0.entry(chunk).or_insert_with(|| Box::new([NONE; CHUNK]));
        if let Some(entry) = chunk.get_mut(at) {
            *entry = collective;
        }
    }

    /// Iterates over them by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Collective)> {
        let all = self.0.iter().flat_map(|(chunk, of)| (chunk * CHUNK as u64..).zip(**of));
        all.filter(|(_, collective)| is_there(collective))
    }
}

fn is_there(collective: &Collective) -> bool {
    collective.call != NONE.call
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_found_and_comes_in_order() {
        let mut known = ByNumber::default();
        let numbers = [31u64, 32, 5, u64::MAX >> 1, 1 << 40, 63];
        for (call, number) in (0..).zip(numbers) {
            assert!(known.get(number).is_none());
            known.put(number, Collective { call, first_seen: number + 1 });
        }
        assert!(!known.needs_chunk(33) && known.needs_chunk(64));
        let mut sorted = numbers;
        sorted.sort_unstable();
        let found: Vec<u64> = known.iter().map(|(number, _)| number).collect();
        assert_eq!(found, sorted);
        assert_eq!(known.get(5), Some(Collective { call: 2, first_seen: 6 }));
    }
}
