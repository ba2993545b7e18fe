//! The ring buffers: one, or several that processes share, put into one order (see [`super::order`]).
//!
//! All records of a process are in one ring buffer, in the order of their reservation, and keep it.

use std::{
    ops::Deref,
    os::fd::{AsFd as _, BorrowedFd},
};

use aya::maps::{MapData, RingBuf};

use rustix::time::ClockId;

use super::{order::made_at, source::records_of};
use inspect::clock::now_ns;

trait Items {
    fn next_item(&mut self) -> Option<impl Deref<Target = [u8]>>;
}

impl Items for RingBuf<MapData> {
    fn next_item(&mut self) -> Option<impl Deref<Target = [u8]>> {
        self.next()
    }
}

/// A ring buffer, and its item that is next.
#[derive(Debug)]
struct Lane<R> {
    ring: R,
    /// The next item; empty if there was none.
    head: Vec<u8>,
}

impl<R: Items> Lane<R> {
    /// Takes the next item, unless the lane has one.
    fn fill(&mut self) {
        if self.head.is_empty()
            && let Some(item) = self.ring.next_item()
        {
            self.head.extend_from_slice(&item);
        }
    }
}

/// Gives out at most `most` records that are not younger than `until`, in the order of time. Returns how
/// many.
fn take_in_order<R: Items>(
    lanes: &mut [Lane<R>],
    until: u64,
    most: usize,
    mut take: impl FnMut(&[u8]),
) -> usize {
    lanes.iter_mut().for_each(Lane::fill);
    let mut taken = 0;
    while taken < most {
        let heads = lanes.iter_mut().filter(|lane| !lane.head.is_empty() && made_at(&lane.head) <= until);
        let Some(oldest) = heads.min_by_key(|lane| made_at(&lane.head)) else { break };
        taken += records_of(&oldest.head).map(&mut take).count();
        oldest.head.clear();
        oldest.fill();
    }
    taken
}

#[expect(missing_debug_implementations, reason = "aya's maps have none")]
pub struct Rings(Vec<Lane<RingBuf<MapData>>>);

impl Rings {
    pub fn new(rings: impl IntoIterator<Item = RingBuf<MapData>>) -> Self {
        Self(rings.into_iter().map(|ring| Lane { ring, head: Vec::new() }).collect())
    }

    /// Gives out about `most` records. Returns how many.
    pub(super) fn take(&mut self, most: usize, mut take: impl FnMut(&[u8])) -> usize {
        let [Lane { ring, .. }] = self.0.as_mut_slice() else {
            return take_in_order(&mut self.0, now_ns(ClockId::Monotonic), most, take);
        };
        // A single ring buffer is in order, and needs no copy.
        let mut taken = 0;
        while taken < most
            && let Some(item) = ring.next()
        {
            taken += records_of(&item).map(&mut take).count();
        }
        taken
    }

    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(|lane| lane.ring.as_fd()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::{super::order::TS_NS, *};

    impl Items for VecDeque<Vec<u8>> {
        fn next_item(&mut self) -> Option<impl Deref<Target = [u8]>> {
            self.pop_front()
        }
    }

    fn lane(records: &[(u64, u8)]) -> Lane<VecDeque<Vec<u8>>> {
        let record = |(ts_ns, content): &(u64, u8)| {
            let mut record = vec![*content; 60];
            record[TS_NS].copy_from_slice(&ts_ns.to_le_bytes());
            record
        };
        Lane { ring: records.iter().map(record).collect(), head: Vec::new() }
    }

    #[test]
    fn what_is_old_enough_comes_in_the_order_of_time_and_each_ring_in_its_own() {
        // The second ring's 15 was reserved after its 40: it comes when that has come.
        let mut lanes = [lane(&[(10, 1), (30, 2), (60, 3)]), lane(&[(20, 4), (40, 5), (15, 6)]), lane(&[])];
        let mut given = Vec::new();
        let mut take = |record: &[u8]| given.push(*record.last().unwrap_or(&99));
        assert_eq!(take_in_order(&mut lanes, 35, 100, &mut take), 3);
        assert_eq!(take_in_order(&mut lanes, 35, 100, &mut take), 0);
        assert_eq!(take_in_order(&mut lanes, 50, 1, &mut take), 1, "a round is bounded");
        lanes[2].ring.extend(lane(&[(45, 7)]).ring);
        assert_eq!(take_in_order(&mut lanes, 100, 100, &mut take), 3);
        assert_eq!(take_in_order(&mut lanes, 100, 100, &mut take), 0);
        assert_eq!(given, [1, 4, 2, 5, 6, 7, 3]);
    }
}
