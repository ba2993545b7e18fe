//! PAT, NCCL's all-gather and reduce-scatter in logarithmic time: how many messages a rank sends and
//! receives.
//!
//! A rank's part travels to the rank that is `x` further by the powers of two that `x` is made of, so that
//! each rank sends the parts of all `x` that have `d` trailing zeroes to the rank at a distance of 2^d. Where
//! a chunk has room for several parts, they share a message. NCCL counts messages by running the algorithm
//! (`ncclProxySaveOp`, src/proxy.cc, with `PatRSAlgorithm` and `PatAGAlgorithm`, src/include/collectives.h,
//! at the tags v2.23.4-1 to v2.30.7-1). The closed form here gives the same numbers; it is compared with the
//! libraries of 2.23 to 2.32 themselves.

use serde::{Deserialize, Serialize};

use super::{FIFO_STEPS, Pattern};
use crate::nccl::NcclVersion;

/// Rule by which a version counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatRule {
    /// True if a reduce-scatter counts the places of a message, also those of ranks that are not there: 2.26
    /// and later.
    counts_places: bool,
    /// True if the algorithm runs between nodes, and nodes of several ranks reduce among themselves first:
    /// 2.31 and later.
    pub between_nodes: bool,
}

impl PatRule {
    /// Returns the rule of a version; `None` if it has no PAT, or is later than those whose counts are known.
    pub fn of(version: NcclVersion) -> Option<Self> {
        let NcclVersion { major: 2, minor: minor @ 23..=32, .. } = version else { return None };
        Some(Self { counts_places: minor >= 26, between_nodes: minor >= 31 })
    }

    /// Returns the messages to a peer, and as many from one, by distance: 1, 2, 4 … below `members`, the
    /// number of ranks, or of nodes if it runs between them. `bytes`: of each rank on the channel. `None` for
    /// another pattern, and for what NCCL cannot make.
    pub fn messages(self, pattern: Pattern, members: u64, chunk_size: u64, bytes: u64) -> Option<Vec<u64>> {
        const INT_MAX: u64 = i32::MAX.unsigned_abs() as u64;
        let places = match pattern {
            Pattern::PatUp => self.counts_places,
            Pattern::PatDown => false,
            _ => return None,
        };
        if !(2..=INT_MAX).contains(&members) || !(1..=INT_MAX).contains(&chunk_size) || bytes == 0 {
            return None;
        }
        let parts = Parts::of(members, chunk_size, bytes);
        let chunks = bytes.div_ceil(chunk_size);
        let dimensions = 0..members.next_power_of_two().ilog2();
        dimensions
            .map(|dimension| {
                let of_chunk = if places { parts.places(dimension) } else { parts.messages(dimension) };
                // NCCL counts in an `int`.
                of_chunk.checked_mul(chunks).filter(|messages| *messages <= INT_MAX)
            })
            .collect()
    }
}

/// Groups of the parts of a chunk. All are powers of two but for the number of members.
#[derive(Debug)]
struct Parts {
    members: u64,
    /// Parts that share a message.
    shared: u64,
    /// Bound of distances: parts whose distances are equal below it go together.
    apart: u64,
}

impl Parts {
    fn of(members: u64, chunk_size: u64, bytes: u64) -> Self {
        let mut shared = 1;
        while shared < members / 2 && chunk_size / bytes / shared >= 2 {
            shared *= 2;
        }
        // As many messages as the FIFO has slots follow each other.
        let (mut together, mut depth) = (shared, FIFO_STEPS);
        while together < members / 2 && depth > 1 {
            together *= 2;
            depth /= 2;
        }
        Self { members, shared, apart: members.next_power_of_two() / together }
    }

    /// Returns the messages that the parts of the ranks that are there fill.
    fn messages(&self, dimension: u32) -> u64 {
        let last = self.members - 1;
        if 1 << dimension >= self.apart {
            return odd_multiples(last, dimension).div_ceil(self.shared);
        }
        // Each distance below `apart` begins a group of its own, and `rest` of them have a member more.
        let (all, rest) = (last / self.apart, last % self.apart);
        let (groups, larger) = (odd_multiples(self.apart - 1, dimension), odd_multiples(rest, dimension));
        larger * (all + 1).div_ceil(self.shared) + (groups - larger) * all.div_ceil(self.shared)
    }

    /// Returns the messages with all their places, as if the number of members were a power of two; the
    /// places of each other message are those of ranks that are there.
    fn places(&self, dimension: u32) -> u64 {
        if self.shared == 1 {
            return odd_multiples(self.members - 1, dimension);
        }
        (odd_multiples(self.members.next_power_of_two() - 1, dimension) / self.shared).max(1)
    }
}

/// Returns how many numbers from 1 to `last` have exactly so many trailing zeroes.
fn odd_multiples(last: u64, zeroes: u32) -> u64 {
    (last + (1 << zeroes)) >> (zeroes + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(minor: u32) -> PatRule {
        PatRule::of(NcclVersion { major: 2, minor, patch: 0 }).expect("a version with PAT")
    }

    #[test]
    fn versions_that_are_not_known_have_no_rule() {
        for (major, minor) in [(2, 22), (2, 33), (3, 0), (1, 27)] {
            assert_eq!(PatRule::of(NcclVersion { major, minor, patch: 1 }), None);
        }
        assert!(!rule(30).between_nodes && rule(31).between_nodes);
    }

    /// Without sharing, every part of another rank is a message, of each chunk.
    #[test]
    fn every_part_of_a_full_chunk_is_a_message() {
        for minor in [23, 27, 32] {
            for pattern in [Pattern::PatUp, Pattern::PatDown] {
                for members in 2..200 {
                    let messages =
                        rule(minor).messages(pattern, members, 4096, 3 * 4096 + 1).unwrap_or_default();
                    assert_eq!(messages.iter().sum::<u64>(), 4 * (members - 1), "{members}");
                    for (messages, distance) in messages.iter().zip((0..).map(|dimension| 1u64 << dimension))
                    {
                        let parts =
                            (1..members).filter(|part| 1 << part.trailing_zeros() == distance).count();
                        assert_eq!(usize::try_from(*messages), Ok(4 * parts), "{members} {distance}");
                    }
                }
            }
        }
    }

    /// Counts the messages by making the groups one by one.
    #[test]
    fn parts_that_share_messages_are_counted_as_if_one_by_one() {
        use std::collections::HashMap;
        for members in 2..150 {
            for bytes in [1, 7, 64, 100, 128, 257, 511, 512] {
                let parts = Parts::of(members, 1024, bytes);
                let mut groups: HashMap<(u32, u64), u64> = HashMap::new();
                for distance in 1..members {
                    *groups.entry((distance.trailing_zeros(), distance % parts.apart)).or_default() += 1;
                }
                let mut messages: HashMap<u32, u64> = HashMap::new();
                for ((dimension, residue), size) in groups {
                    assert!(residue != 0 || 1 << dimension >= parts.apart);
                    *messages.entry(dimension).or_default() += size.div_ceil(parts.shared);
                }
                for (dimension, messages) in messages {
                    assert_eq!(parts.messages(dimension), messages, "{members} {bytes} {dimension}");
                }
            }
        }
    }

    #[test]
    fn what_nccl_cannot_make_has_no_messages() {
        let rule = rule(27);
        let down = |members, chunk, bytes| rule.messages(Pattern::PatDown, members, chunk, bytes);
        assert_eq!(down(1, 512, 512), None);
        assert_eq!(down(0, 512, 512), None);
        assert_eq!(down(8, 0, 512), None);
        assert_eq!(down(8, 512, 0), None);
        assert_eq!(down(8, u64::MAX, 512), None);
        assert_eq!(down(u64::MAX, 512, 512), None);
        assert_eq!(down(8, 1, u64::MAX), None, "more than an int holds");
        assert_eq!(rule.messages(Pattern::Ring, 8, 512, 512), None);
        assert!(down(i32::MAX.unsigned_abs().into(), 512, 1).is_some_and(|messages| messages.len() == 31));
    }
}
