//! Changes from one reading to the next.

use std::time::Instant;

use super::{Motion, OneSided, OpReport, ProxyListState, RankReport};

#[derive(Debug)]
pub(super) struct Reading {
    pub(super) at: Instant,
    pub(super) ranks: Vec<RankReport>,
}

/// Tells whether each communicator moved from the first reading that has it to the last, so that another one would
/// tell nothing new.
pub(super) fn all_moved(readings: &[Reading]) -> bool {
    let [before @ .., last] = readings else { return false };
    let has_moved = |rank: &RankReport| {
        let first = before.iter().find_map(|reading| find(reading, rank));
        first.is_none_or(|first| steps_differ(first, rank))
    };
    !before.is_empty()
        && last.ranks.iter().all(|rank| {
            let mut group = last.ranks.iter().filter(|other| other.comm_hash == rank.comm_hash);
            group.any(has_moved)
        })
}

/// Returns the last reading, with what moved since the first.
pub(super) fn over(mut readings: Vec<Reading>) -> Vec<RankReport> {
    let Some(last) = readings.pop() else { return Vec::new() };
    let mut ranks = last.ranks;
    for rank in &mut ranks {
        let before: Vec<(Instant, &RankReport)> =
            readings.iter().rev().map_while(|reading| Some((reading.at, find(reading, rank)?))).collect();
        let mut motion = Motion { readings: 1, ..Motion::default() };
        let mut later: &RankReport = rank;
        for (at, before) in &before {
            motion.readings += 1;
            motion.seconds = last.at.duration_since(*at).as_secs_f64();
            motion.steps_moved |= steps_differ(before, later);
            motion.counters_moved |= before.counters != later.counters || before.set_up != later.set_up;
            later = before;
        }
        for op in &mut rank.proxy.ops {
            // The first reading from which on the op has stood where it stands.
            let same = before.iter().take_while(|(_, before)| before.proxy.ops.contains(op));
            let since = same.last().map_or(last.at, |(at, _)| *at);
            op.still_seconds = last.at.duration_since(since).as_secs_f64();
        }
        let mut one_sided = rank.one_sided.take();
        for queue in one_sided.iter_mut().flat_map(|one_sided| &mut one_sided.queues) {
            let queues = before.iter().map(|(at, before)| (at, before.one_sided.as_ref()));
            let stood = |(_, earlier): &(&Instant, Option<&OneSided>)| {
                earlier.is_some_and(|earlier| queue.stands_as(&earlier.queues))
            };
            let since = queues.take_while(stood).last().map_or(last.at, |(at, _)| *at);
            queue.still_seconds = last.at.duration_since(since).as_secs_f64();
        }
        rank.one_sided = one_sided;
        rank.motion = motion;
    }
    ranks
}

fn find<'r>(reading: &'r Reading, rank: &RankReport) -> Option<&'r RankReport> {
    reading.ranks.iter().find(|known| {
        (known.pid, known.address, &known.comm_hash, known.rank)
            == (rank.pid, rank.address, &rank.comm_hash, rank.rank)
    })
}

/// Tells whether steps moved. A list that changed each time while it was read moved, if anything did.
fn steps_differ(before: &RankReport, after: &RankReport) -> bool {
    let torn = |rank: &RankReport| rank.proxy.state == ProxyListState::Torn;
    let one_sided_moved = match (&before.one_sided, &after.one_sided) {
        (Some(before), Some(after)) => after.moved_since(before),
        (None, Some(after)) => after.called > 0,
        (_, None) => false,
    };
    torn(before) || torn(after) || sorted(before) != sorted(after) || one_sided_moved
}

/// Returns the ops in a fixed order: the order in the list changes without anything having moved.
fn sorted(rank: &RankReport) -> Vec<&OpReport> {
    let mut ops: Vec<&OpReport> = rank.proxy.ops.iter().collect();
    ops.sort_by_key(|op| (op.p2p, op.op_count, op.channel, op.direction, op.peer, op.nsteps, op.done));
    ops
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{OneSidedQueue, rank_report::ProxyReport};
    use nccl_library::nccl::Direction;

    pub(super) fn op(done: u64) -> OpReport {
        OpReport {
            op_count: 5,
            p2p: false,
            coll: Some("AllReduce".to_owned()),
            pattern: Some("RING_TWICE".to_owned()),
            protocol: Some("SIMPLE".to_owned()),
            channel: 0,
            direction: Direction::Recv,
            peer: Some(1),
            transport: Some("NET".to_owned()),
            net_dev: None,
            begun: true,
            nsteps: 8,
            posted: 8,
            received: done,
            flushed: None,
            transmitted: done,
            done,
            gpu: None,
            gpu_ready: None,
            chunk_steps: 4,
            slice_steps: 2,
            still_seconds: 0.0,
        }
    }

    fn reading(at: Instant, done: u64, op_count: u64) -> Reading {
        let mut rank = RankReport { comm_hash: "0x1".to_owned(), n_ranks: 2, ..RankReport::default() };
        rank.proxy = ProxyReport { state: ProxyListState::Read, ops: vec![op(done)], carries_rings: None };
        rank.counters.op_count = Some(op_count);
        Reading { at, ranks: vec![rank] }
    }

    #[test]
    fn steps_that_stand_are_still_since_the_reading_in_which_they_already_stood() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let ranks = over(vec![reading(at(0), 2, 7), reading(at(500), 4, 7), reading(at(1000), 4, 7)]);
        let motion = ranks[0].motion;
        assert_eq!((motion.readings, motion.steps_moved, motion.counters_moved), (3, true, false));
        assert!((ranks[0].proxy.ops[0].still_seconds - 0.5).abs() < 1e-9);
        let ranks = over(vec![reading(at(0), 4, 7), reading(at(500), 4, 7), reading(at(1000), 4, 7)]);
        assert!(ranks[0].motion.is_still() && (ranks[0].motion.seconds - 1.0).abs() < 1e-9);
        let ranks = over(vec![reading(at(0), 4, 7), reading(at(500), 4, 8)]);
        assert!(ranks[0].motion.counters_moved && !ranks[0].motion.steps_moved);
    }

    #[test]
    fn one_that_is_found_later_is_still_only_since_it_was_found() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let none = Reading { at: start, ranks: Vec::new() };
        let ranks = over(vec![none, reading(at(100), 4, 7), reading(at(500), 4, 7), reading(at(1000), 4, 7)]);
        let motion = ranks[0].motion;
        assert!(
            motion.is_still() && motion.readings == 3 && (motion.seconds - 0.9).abs() < 1e-9,
            "{motion:?}"
        );
    }

    #[test]
    fn a_queue_stands_since_the_reading_from_which_on_nothing_got_done() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let reading = |ms, called, taken, done| {
            let mut reading = reading(at(ms), 4, 7);
            let queue = OneSidedQueue { called, taken, done, ..OneSidedQueue::default() };
            let other = OneSidedQueue { slot: 1, done: taken, ..queue.clone() };
            reading.ranks[0].one_sided = Some(OneSided { queues: vec![other, queue], ..OneSided::default() });
            reading
        };
        let still = |readings: [Reading; 3]| {
            let ranks = over(readings.into());
            let one_sided = ranks[0].one_sided.clone().unwrap_or_default();
            let still: Vec<f64> = one_sided.queues.iter().map(|queue| queue.still_seconds).collect();
            (still, ranks[0].motion.steps_moved)
        };
        let stands = |ms| reading(ms, 5, 5, 3);
        assert_eq!(still([stands(0), stands(500), stands(1000)]), (vec![0.0, 1.0], false));
        assert_eq!(still([reading(0, 5, 5, 2), stands(500), stands(1000)]), (vec![0.0, 0.5], true));
        // More that is put behind does not help; what was not in flight before has not stood.
        let more = |ms| reading(ms, 9, 7, 3);
        assert_eq!(still([stands(0), more(500), more(1000)]), (vec![0.0, 1.0], true));
        assert_eq!(still([reading(0, 5, 3, 3), stands(500), stands(1000)]), (vec![0.0, 0.5], true));
    }

    #[test]
    fn what_one_reading_could_not_read_did_not_move() {
        let start = Instant::now();
        let reading = |ms, is_cut, counts: &[(u32, u32)]| {
            let mut reading = reading(start + Duration::from_millis(ms), 4, 7);
            let queues = counts.iter().map(|(slot, done)| OneSidedQueue {
                slot: *slot,
                called: 9,
                taken: 9,
                done: *done,
                ..OneSidedQueue::default()
            });
            let done = counts.iter().map(|(_, done)| u64::from(*done)).sum();
            let queues = queues.collect();
            reading.ranks[0].one_sided = Some(OneSided { done, queues, is_cut, ..OneSided::default() });
            reading
        };
        let moved = |first, second| over(vec![first, second])[0].motion.steps_moved;
        let whole = |ms| reading(ms, false, &[(0, 3), (1, 5)]);
        assert!(!moved(whole(0), whole(500)));
        assert!(!moved(reading(0, true, &[(0, 3)]), whole(500)));
        assert!(!moved(whole(0), reading(500, true, &[(1, 5)])));
        assert!(moved(reading(0, true, &[(0, 2)]), whole(500)));
        assert!(moved(reading(0, false, &[(0, 3)]), whole(500)));
    }

    #[test]
    fn another_reading_is_taken_until_every_communicator_moved() {
        let start = Instant::now();
        assert!(!all_moved(&[reading(start, 4, 7), reading(start, 4, 8)]));
        assert!(all_moved(&[reading(start, 4, 7), reading(start, 6, 7)]));
        // One that is found later has moved only since it was found.
        let none = || Reading { at: start, ranks: Vec::new() };
        assert!(!all_moved(&[none(), reading(start, 4, 7), reading(start, 4, 7)]));
        assert!(all_moved(&[none(), reading(start, 4, 7), reading(start, 6, 7)]));
    }
}
