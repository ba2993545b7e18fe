//! The job's rank of each rank of a communicator: torch's files are named by the job's ranks, and its groups
//! list them.

use std::collections::{BTreeMap, BTreeSet};

use super::ProcessGroup;
use flow::text::joined;

/// Maximum number of ranks of a communicator: more than any job has.
const MAX_RANKS: u32 = 1 << 20;

/// Maximum number of ranks that are listed in a message.
const LISTED: usize = 8;

/// The job's ranks in the order of a communicator's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalRanks {
    pub ranks: Vec<u64>,
    /// Number of ranks whose rank in the job nobody tells. All others have the same number in both, so these
    /// were given theirs.
    pub inferred: u32,
}

impl GlobalRanks {
    /// Maps the ranks from those that are known: `known` has the communicator's number and the job's. The
    /// error says why the others are not.
    pub fn of(n_ranks: u32, known: &BTreeMap<u32, u32>) -> Result<Self, String> {
        if n_ranks > MAX_RANKS {
            return Err(format!("it has {n_ranks} ranks"));
        }
        let is_same = known.iter().all(|(rank, of_job)| rank == of_job) && !known.is_empty();
        let unknown: Vec<u32> = (0..n_ranks).filter(|rank| !known.contains_key(rank)).collect();
        if !unknown.is_empty() && !is_same {
            let more = if unknown.len() > LISTED { ", …" } else { "" };
            let listed = joined(unknown.iter().take(LISTED), ", ");
            return Err(match unknown.as_slice() {
                [rank] => format!("nothing says which rank of the job its rank {rank} is"),
                _ => format!("nothing says which ranks of the job its ranks {listed}{more} are"),
            });
        }
        let ranks: Vec<u64> =
            (0..n_ranks).map(|rank| known.get(&rank).copied().unwrap_or(rank).into()).collect();
        let mut seen = BTreeSet::new();
        if let Some(twice) = ranks.iter().find(|rank| !seen.insert(**rank)) {
            return Err(format!("two of its ranks are rank {twice} of the job, as far as it is known"));
        }
        Ok(Self { ranks, inferred: u32::try_from(unknown.len()).unwrap_or(u32::MAX) })
    }
}

/// Place of each rank among the sorted ranks of its group. torch's readers take a rank's number in a name for
/// that place. torch sorts the ranks of its groups, so that it is the rank in the group; other programs need
/// not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(Option<Vec<u32>>);

impl Places {
    pub fn of(group: &ProcessGroup) -> Self {
        if group.ranks.is_sorted() {
            return Self(None);
        }
        let mut sorted: Vec<(u64, usize)> = group.ranks.iter().copied().zip(0..).collect();
        sorted.sort_unstable();
        let mut places = vec![0; sorted.len()];
        for (place, (_, rank)) in (0..).zip(sorted) {
            if let Some(at) = places.get_mut(rank) {
                *at = place;
            }
        }
        Self(Some(places))
    }

    pub(super) fn place(&self, rank: u32) -> u32 {
        let places = self.0.as_ref();
        places.and_then(|places| places.get(rank as usize)).copied().unwrap_or(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_ranks_are_those_of_the_job_only_where_all_others_are() {
        let of = |n_ranks, known: &[(u32, u32)]| GlobalRanks::of(n_ranks, &known.iter().copied().collect());
        let ranks = |ranks: &[u64], inferred| Ok(GlobalRanks { ranks: ranks.to_vec(), inferred });
        assert_eq!(of(2, &[(0, 4), (1, 2)]), ranks(&[4, 2], 0));
        assert_eq!(of(4, &[(0, 0), (2, 2)]), ranks(&[0, 1, 2, 3], 2));
        assert!(of(3, &[(0, 4), (1, 5)]).unwrap_err().contains("its rank 2 is"));
        assert!(of(2, &[]).is_err());
        assert!(of(2, &[(0, 3), (1, 3)]).unwrap_err().contains("rank 3 of the job"));
        assert!(of(u32::MAX, &[(0, 0)]).is_err());
    }
}
