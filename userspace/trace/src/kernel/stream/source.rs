//! The kernel's buffer, of either kind.

use std::{fmt, os::fd::BorrowedFd};

use ncclflow_common::{PACK_BYTES, PACKED, PACKED_BYTES};

use super::{perf::PerfBuffers, rings::Rings};

/// Most records that are taken in one round, so that a flood does not keep the drain from ending.
const MAX_RECORDS_PER_ROUND: usize = 65_536;

/// The buffers that records come from, in the order in which they were made.
pub enum Source {
    Rings(Rings),
    Perf(PerfBuffers),
    /// Double of the kernel, for tests. Gives out all items it has, once.
    #[cfg(test)]
    Double(std::collections::VecDeque<Vec<u8>>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rings(_) => "Rings",
            Self::Perf(_) => "Perf",
            #[cfg(test)]
            Self::Double(_) => "Double",
        })
    }
}

impl Source {
    /// Gives every record that is there to `take`, up to a bound. Returns how many there were.
    pub fn take(&mut self, take: impl FnMut(&[u8])) -> usize {
        match self {
            Self::Rings(rings) => rings.take(MAX_RECORDS_PER_ROUND, take),
            Self::Perf(buffers) => buffers.take(take),
            #[cfg(test)]
            Self::Double(items) => {
                let mut take = take;
                items.drain(..).map(|item| records_of(&item).map(&mut take).count()).sum()
            }
        }
    }

    /// Returns descriptors that are readable when there is reason to read: a ring buffer's program says so
    /// when much has gathered, the perf event array for every record.
    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Rings(rings) => rings.fds(),
            Self::Perf(buffers) => buffers.fds(),
            #[cfg(test)]
            Self::Double(_) => Vec::new(),
        }
    }

    /// Tells whether every single record wakes whoever watches [`Source::fds`].
    pub(super) fn wakes_for_each_record(&self) -> bool {
        matches!(self, Self::Perf(_))
    }
}

/// Returns the records of an item of the buffer: each of a pack (see [`PACK_BYTES`]), or the item itself.
pub fn records_of(item: &[u8]) -> impl Iterator<Item = &[u8]> {
    // A perf event's sample is up to 7 bytes longer than what was sent.
    let packed = (PACK_BYTES..PACK_BYTES + 8).contains(&item.len());
    let (size, of_pack) = if packed { (PACKED_BYTES, PACKED) } else { (item.len().max(1), 1) };
    let is_there = move |record: &&[u8]| !packed || record.first_chunk().is_none_or(|len| *len != [0; 2]);
    item.chunks(size).take(of_pack).take_while(is_there)
}

#[cfg(test)]
mod tests {
    use ncclflow_common::RECORD_CLASSES;

    use super::*;

    #[test]
    fn a_pack_is_taken_apart_and_nothing_else() {
        let mut pack = vec![0; PACK_BYTES + 4];
        for (number, record) in pack.chunks_mut(PACKED_BYTES).take(2).enumerate() {
            record.fill(u8::try_from(number).unwrap() + 1);
        }
        let firsts =
            |item: &[u8]| records_of(item).map(|record| (record[0], record.len())).collect::<Vec<_>>();
        assert_eq!(firsts(&pack), [(1, PACKED_BYTES), (2, PACKED_BYTES)]);
        pack[2 * PACKED_BYTES] = 9;
        assert_eq!(firsts(&pack), [(1, PACKED_BYTES), (2, PACKED_BYTES), (9, PACKED_BYTES)]);
        for class in RECORD_CLASSES {
            assert_eq!(firsts(&vec![0; class.size + 4]), [(0, class.size + 4)]);
        }
        assert_eq!(records_of(&[]).count(), 0);
    }
}
