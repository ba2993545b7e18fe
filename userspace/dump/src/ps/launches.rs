//! Launches of a communicator, by NCCL's own counters, and whether they grew since the last look.

use std::{
    collections::{BTreeMap, HashMap},
    time::Instant,
};

use serde::{Deserialize, Serialize};

use crate::{Counters, RankReport};
use flow::known;
use nccl_library::fields::counts_always;

/// Counter of NCCL's that [`Launches::collectives`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LaunchCounter {
    /// `ncclComm.seqNumber`, by function: from 2.26 on.
    SeqNumber,
    /// `collOpCount`, of the communicator (2.24 and 2.25) or of its resources, which no other communicator
    /// has (before).
    CollOpCount,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Launches {
    /// Number of collectives; `None` where this version has no number that counts them all, or counts them
    /// together with another communicator's.
    pub collectives: Option<u64>,
    #[serde(default, deserialize_with = "known")]
    pub collectives_counter: Option<LaunchCounter>,
    /// Number of collectives by function; empty where NCCL does not count them apart.
    pub collectives_by_function: BTreeMap<String, u64>,
    /// Changes since the last look; `None` at the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_last_look: Option<Movement>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Movement {
    pub seconds: f64,
    pub collectives: Option<u64>,
    /// Some counter of NCCL's grew: collectives, sends and receives, or starts of the proxy.
    pub moved: bool,
}

impl Launches {
    pub(super) fn of(rank: &RankReport) -> Self {
        let counters = &rank.counters;
        let by_function = &counters.seq_number;
        if !by_function.is_empty() {
            return Self {
                collectives: by_function.values().try_fold(0u64, |sum, count| sum.checked_add(*count)),
                collectives_counter: Some(LaunchCounter::SeqNumber),
                collectives_by_function: by_function
                    .iter()
                    .filter(|(_, count)| **count > 0)
                    .map(|(name, count)| (name.clone(), *count))
                    .collect(),
                since_last_look: None,
            };
        }
        // As long as `seqNumber` does not count every launch, `collOpCount` does.
        let counts_all = counts_always(rank.version(), None) == Some(false);
        let collectives = counters.coll_op_count.filter(|_| counts_all && !counters.coll_op_count_is_shared);
        Self {
            collectives,
            collectives_counter: collectives.map(|_| LaunchCounter::CollOpCount),
            ..Self::default()
        }
    }
}

/// Identity of a communicator in one process, and not in a later one with its PID: PID, start of the process
/// in ticks since the system's, address, hash, rank.
type Key = (u32, Option<u64>, u64, String, u32);

#[derive(Debug)]
struct Seen {
    at: Instant,
    counters: Counters,
    collectives: Option<u64>,
}

/// Counters of all communicators at the last look, and at this one.
#[derive(Debug, Default)]
pub(super) struct Looks {
    last: HashMap<Key, Seen>,
    this: HashMap<Key, Seen>,
}

impl Looks {
    /// Begins a look: the one before becomes the last.
    pub(super) fn begin(&mut self) {
        self.last = std::mem::take(&mut self.this);
    }

    /// Returns the launches of the rank, and those since the last look, if the rank was there then. `started`
    /// is the start of its process.
    pub(super) fn look(&mut self, rank: &RankReport, started: Option<u64>, at: Instant) -> Launches {
        let key = (rank.pid, started, rank.address, rank.comm_hash.clone(), rank.rank);
        let mut launches = Launches::of(rank);
        let seen = Seen { at, counters: rank.counters.clone(), collectives: launches.collectives };
        launches.since_last_look = self.last.get(&key).map(|last| Movement {
            seconds: at.duration_since(last.at).as_secs_f64(),
            collectives: last
                .collectives
                .zip(seen.collectives)
                .and_then(|(before, now)| now.checked_sub(before)),
            moved: last.counters != seen.counters,
        });
        self.this.insert(key, seen);
        launches
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rank(version: &str, counters: Counters) -> RankReport {
        RankReport {
            pid: 7,
            address: 0x1000,
            nccl_version: Some(version.to_owned()),
            counters,
            ..RankReport::default()
        }
    }

    #[test]
    fn a_number_is_shown_only_where_it_is_known_what_it_counts() {
        let ops = |shared| Counters {
            coll_op_count: Some(9),
            coll_op_count_is_shared: shared,
            op_count: Some(77),
            ..Counters::default()
        };
        let of = |version, shared| Launches::of(&rank(version, ops(shared))).collectives;
        assert_eq!(of("2.21.5", false), Some(9));
        assert_eq!(of("2.21.5", true), None, "others count with it");
        assert_eq!(of("2.27.5", false), None, "there it counts what goes through the proxy");
        assert_eq!(of("unknown", false), None);
        let seq = BTreeMap::from([
            ("AllReduce".to_owned(), 5),
            ("Broadcast".to_owned(), 2),
            ("Reduce".to_owned(), 0),
        ]);
        let launches = Launches::of(&rank("2.27.5", Counters { seq_number: seq, ..ops(true) }));
        assert_eq!(launches.collectives, Some(7));
        assert_eq!(launches.collectives_counter, Some(LaunchCounter::SeqNumber));
        assert_eq!(launches.collectives_by_function.len(), 2, "what was never called is not listed");
    }

    #[test]
    fn from_look_to_look_it_is_said_what_was_launched() {
        let with = |colls, p2p| {
            rank(
                "2.21.5",
                Counters { coll_op_count: Some(colls), p2p_op_count: Some(p2p), ..Counters::default() },
            )
        };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut looks = Looks::default();
        assert_eq!(looks.look(&with(5, 0), Some(1), at(0)).since_last_look, None);
        looks.begin();
        let moved = looks.look(&with(12, 0), Some(1), at(2)).since_last_look.unwrap();
        assert_eq!((moved.collectives, moved.moved), (Some(7), true));
        assert!((moved.seconds - 2.0).abs() < 1e-9);
        looks.begin();
        let moved = looks.look(&with(12, 3), Some(1), at(4)).since_last_look.unwrap();
        assert_eq!((moved.collectives, moved.moved), (Some(0), true), "sends move, too");
        looks.begin();
        let moved = looks.look(&with(12, 3), Some(1), at(6)).since_last_look.unwrap();
        assert_eq!((moved.collectives, moved.moved), (Some(0), false));
        looks.begin();
        assert_eq!(looks.look(&with(12, 3), Some(2), at(8)).since_last_look, None, "another process");
        looks.begin();
        looks.begin();
        assert_eq!(looks.look(&with(12, 3), Some(2), at(9)).since_last_look, None, "it was gone meanwhile");
    }
}
