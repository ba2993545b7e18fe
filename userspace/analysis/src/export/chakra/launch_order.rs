//! Ops in the order of their launches. They come when their messages have ended, which is another order, so
//! they wait here. The order is that of all communicators of a process, as kernels of a profiler's trace are
//! put between them.

use std::collections::{BTreeMap, HashMap};

use flow::schema::RankKey;

use super::Work;

/// Most ops of a process that wait. NCCL has some hundreds on their way at a time on a communicator.
const MAX_WAITING: usize = 4096;

/// Place of an op: the time of its launch, and its number.
type Place = (u64, u64);

#[derive(Debug, Default)]
pub(super) struct LaunchOrder {
    /// Waiting ops by process: processes of one recording have numbers of their own.
    waiting: HashMap<u32, BTreeMap<(Place, RankKey), Work>>,
    /// Place of the last op that was given out, by rank.
    given: HashMap<RankKey, Place>,
    /// Number of ops that came after a later launch was given out.
    late: u64,
}

impl LaunchOrder {
    /// Takes an op, once for all of its channels. Gives out an op that has waited long enough.
    pub(super) fn add(&mut self, work: Work) -> Option<Work> {
        let (rank, place) = (work.key, (work.ts_ns, work.seq.unwrap_or_default()));
        if self.given.get(&rank) == Some(&place) {
            return None;
        }
        let waiting = self.waiting.entry(rank.pid).or_default();
        waiting.entry((place, rank)).or_insert(work);
        if waiting.len() <= MAX_WAITING {
            return None;
        }
        let ((place, rank), work) = waiting.pop_first()?;
        self.give(rank, place);
        Some(work)
    }

    /// Gives out all waiting ops, those of a process in their order.
    pub(super) fn take_all(&mut self) -> Vec<Work> {
        let mut all = Vec::new();
        let mut processes: Vec<_> = self.waiting.drain().collect();
        processes.sort_unstable_by_key(|(pid, _)| *pid);
        for (_, waiting) in processes {
            for ((place, rank), work) in waiting {
                self.give(rank, place);
                all.push(work);
            }
        }
        self.given.clear();
        all
    }

    pub(super) fn late(&self) -> u64 {
        self.late
    }

    fn give(&mut self, rank: RankKey, place: Place) {
        let last = self.given.entry(rank).or_insert(place);
        self.late += u64::from(place < *last);
        *last = place.max(*last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(rank: i32, ts_ns: u64, seq: u64) -> Work {
        let key = RankKey { hash: Some(7), instance: 0, rank, pid: 1 };
        Work {
            key,
            function: "AllReduce".into(),
            n_ranks: 2,
            bytes: None,
            peer: None,
            root: None,
            ts_ns,
            seq: Some(seq),
            lane: None,
            told: super::super::Told::default(),
            launched: None,
        }
    }

    fn seqs(works: &[Work]) -> Vec<(i32, u64)> {
        works.iter().map(|work| (work.key.rank, work.seq.unwrap())).collect()
    }

    #[test]
    fn ops_are_in_the_order_of_launches_whenever_they_ended() {
        let mut order = LaunchOrder::default();
        for (rank, ts_ns, seq) in [(1, 30, 6), (1, 10, 2), (0, 20, 4), (1, 20, 4), (1, 20, 4), (0, 10, 2)] {
            assert!(order.add(work(rank, ts_ns, seq)).is_none());
        }
        assert_eq!(seqs(&order.take_all()), [(0, 2), (1, 2), (0, 4), (1, 4), (1, 6)]);
        assert_eq!(order.late(), 0);
    }

    #[test]
    fn what_comes_too_late_is_counted() {
        let mut order = LaunchOrder::default();
        let mut given = Vec::new();
        for n in 1..=MAX_WAITING as u64 + 10 {
            given.extend(order.add(work(0, 100 * n, 2 * n)));
        }
        assert_eq!(given.len(), 10);
        order.add(work(0, 150, 3));
        given.extend(order.take_all());
        assert_eq!(order.late(), 1);
    }
}
