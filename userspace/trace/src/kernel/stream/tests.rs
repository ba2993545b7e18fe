//! The drain, with a double in the place of the kernel.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use ncclflow_common::{LOSS_MARK, RecordHeader};

use flow::recording::Batch;

use super::{Drain, Outlet, Popped, Queue, Source};

const RECORD: u16 = 200;

/// Records of two processes on three CPUs, numbered per probe and CPU.
fn records(count: u64) -> impl Iterator<Item = Vec<u8>> {
    let mut hits = BTreeMap::new();
    (0..count).map(move |n| {
        let (probe, cpu) = (u16::try_from(n % 5).unwrap(), u32::try_from(n % 3).unwrap());
        let hit = hits.entry((probe, cpu)).or_insert(0);
        *hit += 1;
        let header = RecordHeader {
            len: RECORD,
            probe,
            cpu,
            hit: *hit - 1,
            ts_ns: n,
            tgid: 100 + u32::try_from(n % 2).unwrap(),
            ..RecordHeader::default()
        };
        let mut record = header.to_bytes().to_vec();
        record.resize(384, 0xee); // as large as the kernel's reservation
        record
    })
}

/// Takes what is in the queue. Returns the records' times, and by process the number that marks say was
/// dropped.
fn take_all(queue: &Queue) -> (Vec<u64>, BTreeMap<u32, u64>) {
    let (mut times, mut marked) = (Vec::new(), BTreeMap::new());
    while let Popped::Batch(batch) = queue.pop(Some(std::time::Duration::ZERO)) {
        for record in batch.records() {
            let header = RecordHeader::from_bytes(record).unwrap();
            if header.probe == LOSS_MARK {
                *marked.entry(header.tgid).or_insert(0) += header.lost;
            } else {
                assert_eq!(record.len(), usize::from(RECORD), "without what is behind it");
                times.push(header.ts_ns);
            }
        }
    }
    (times, marked)
}

#[test]
fn records_come_in_order_and_a_taker_that_does_not_take_loses_and_is_told() {
    const COUNT: u64 = 20_000;
    const LIMIT: usize = 1 << 20;
    let run = |takes: bool| {
        let queue = Arc::new(Queue::new(LIMIT));
        let source = Source::Double(std::collections::VecDeque::new());
        let mut drain = Drain::new(source, Outlet::new(Arc::clone(&queue)));
        let mut all = records(COUNT).collect::<std::collections::VecDeque<_>>();
        let mut times = Vec::new();
        while !all.is_empty() {
            let rest = all.split_off(all.len().min(1000));
            drain.give(std::mem::replace(&mut all, rest));
            drain.round();
            if takes {
                times.extend(take_all(&queue).0);
            }
        }
        assert_eq!(drain.taken().total(), COUNT);
        (queue, drain, times)
    };
    let (_, drain, times) = run(true);
    assert_eq!(times, (0..COUNT).collect::<Vec<_>>());
    assert_eq!(drain.outlet().dropped().total(), 0);

    let (slow, mut drain, _) = run(false);
    let dropped = drain.outlet().dropped().clone();
    assert!(drain.outlet().peak() <= LIMIT);
    drain.close(|_| 0);
    let (times, marked) = take_all(&slow);
    assert!(times.is_sorted());
    assert_eq!(times.len() as u64 + dropped.total(), COUNT);
    assert_eq!(marked.values().sum::<u64>(), dropped.total(), "what was dropped is told in the stream");
    let kept = times.len() as u64;
    for probe in 0..5u32 {
        let came = times.iter().filter(|time| **time % 5 == u64::from(probe)).count() as u64;
        assert_eq!(came + dropped.of_probe(probe), COUNT / 5);
    }
    assert!(kept > 0 && kept < COUNT, "some, and not all");
    assert!(matches!(slow.pop(None), Popped::Closed));
}

#[test]
fn losses_of_the_kernel_after_the_last_record_are_told_at_the_end() {
    let queue = Arc::new(Queue::new(1 << 20));
    let items = records(4)
        .map(|mut record| {
            // Two records of each process were lost before.
            let at = std::mem::offset_of!(RecordHeader, lost);
            record[at] = 2;
            record
        })
        .collect();
    let mut drain = Drain::new(Source::Double(items), Outlet::new(Arc::clone(&queue)));
    assert_eq!(drain.take_all(), 4);
    drain.close(|tgid| if tgid == 101 { 7 } else { 2 });
    let (times, marked) = take_all(&queue);
    assert_eq!(times, [0, 1, 2, 3]);
    assert_eq!(marked, BTreeMap::from([(101, 5)]));
}

#[test]
fn a_queue_that_nobody_takes_from_any_more_keeps_nobody_waiting() {
    let queue = Queue::new(10);
    let mut batch = Batch::default();
    batch.push(&records(1).next().unwrap());
    let batch = Arc::new(batch);
    assert!(queue.push(&batch), "one always fits");
    assert!(!queue.push(&batch));
    queue.close();
    assert!(!queue.push_when_there_is_room(&batch) && !queue.push(&batch), "nobody would take it");
    assert!(matches!(queue.pop(None), Popped::Batch(_)), "what was there before is still to be had");
    assert!(matches!(queue.pop(None), Popped::Closed));
}

/// A taker that has failed is as one that does not keep up: everything that it did not take is counted.
#[test]
fn what_a_taker_that_failed_has_left_is_dropped_and_counted() {
    const COUNT: u64 = 3000;
    let queue = Arc::new(Queue::new(64 << 20));
    let mut all = records(COUNT).collect::<std::collections::VecDeque<_>>();
    let late = all.split_off(1000);
    let mut drain = Drain::new(Source::Double(all), Outlet::new(Arc::clone(&queue)));
    assert_eq!(drain.round(), 1000);
    let Popped::Batch(first) = queue.pop(None) else { panic!("nothing came") };
    let taken = first.len() as u64;
    // The inbox does so when the taker's thread ends.
    queue.close();
    let mut late = late.into_iter().collect::<std::collections::VecDeque<_>>();
    let last = late.split_off(1000);
    drain.give(late);
    drain.round();
    drain.give(last);
    assert_eq!(drain.take_all(), 1000);
    drain.close(|_| 0);
    drain.outlet_mut().drop_what_is_left();
    assert_eq!(taken + drain.outlet().dropped().total(), COUNT);
}

/// A process that floods a queue that is more than half full loses its own records, and another one none.
#[test]
fn a_process_that_floods_loses_its_own() {
    const LIMIT: usize = 64 << 10;
    let queue = Arc::new(Queue::new(LIMIT));
    let mut drain = Drain::new(Source::Double(VecDeque::default()), Outlet::new(Arc::clone(&queue)));
    let record = |tgid: u32, ts_ns: u64| {
        let header = RecordHeader { len: RECORD, tgid, ts_ns, ..RecordHeader::default() };
        let mut record = header.to_bytes().to_vec();
        record.resize(RECORD.into(), 0xee);
        record
    };
    let (mut sent, mut came) = (BTreeMap::<u32, u64>::new(), BTreeMap::<u32, u64>::new());
    let mut time = 0;
    let mut marked = BTreeMap::<u32, u64>::new();
    for _ in 0..200 {
        // A hundred of the one, one of the other, thrice before the taker comes once and takes a half.
        for _ in 0..3 {
            let mut items = std::collections::VecDeque::new();
            for tgid in [[7; 100].as_slice(), &[8]].concat() {
                time += 1;
                items.push_back(record(tgid, time));
                *sent.entry(tgid).or_default() += 1;
            }
            drain.give(items);
            drain.round();
        }
        let mut bytes = 0;
        while bytes < LIMIT / 3
            && let Popped::Batch(batch) = queue.pop(Some(std::time::Duration::ZERO))
        {
            bytes += batch.bytes().len();
            for header in batch.records().filter_map(RecordHeader::from_bytes) {
                let counts = if header.probe == LOSS_MARK { &mut marked } else { &mut came };
                *counts.entry(header.tgid).or_default() +=
                    if header.probe == LOSS_MARK { header.lost } else { 1 };
            }
        }
    }
    let over = drain.outlet().over_share().clone();
    let dropped = drain.outlet().dropped().total();
    drain.close(|_| 0);
    let (times, further) = take_all(&queue);
    for (tgid, lost) in further {
        *marked.entry(tgid).or_default() += lost;
    }
    assert_eq!(over.keys().collect::<Vec<_>>(), [&7], "who floods is named");
    assert_eq!(over[&7], dropped, "and nothing else was dropped");
    assert_eq!(marked, over, "the stream says so");
    assert_eq!(came.values().sum::<u64>() + times.len() as u64 + dropped, sent.values().sum::<u64>());
    assert!(dropped > 10_000, "{dropped}");
}
