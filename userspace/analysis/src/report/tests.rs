//! Compares the page's data with sums that are made here, row by row, in another way.

use std::collections::BTreeMap;

use flow::{
    made::rows::{message_rows, op_row},
    schema::{FrameRow, MessageRow, Observed, Op, OpRow, RankKey, StackId, StackRow, WaitTimes},
};

use super::{
    code::Code,
    kinds::Kinds,
    links::Links,
    open_ops::{OpTotals, OpenOps},
    timeline::Timeline,
};

const MS: u64 = 1_000_000;

fn op(rank: i32, seq: u64, channel: u32) -> Op {
    let key = RankKey { hash: Some(7), instance: 0, rank, pid: 10 };
    let row = OpRow { rank, seq, channel, ts_ns: seq.wrapping_mul(MS), ..op_row() };
    Op { rank: key, row, call_bytes: Some(4096 * (1 + seq % 3)) }
}

fn totals(rank: i32, seq: u64, span_ns: Option<(u64, u64)>) -> OpTotals {
    let op = op(rank, seq, 0);
    let mut totals = OpTotals::new(0, &op, 0, None);
    totals.add_channel(&op, 0, None);
    (totals.span_ns, totals.waits_ns) = (span_ns, [0, 3 * MS, 0, 0, MS, 0, 0, 0]);
    totals
}

/// Makes a message of the op, with these times.
fn message(op: &Op, begin: u64, end: u64, bytes: u64) -> MessageRow {
    let mut row = message_rows().into_iter().find(|row| row.op.name() == "SEND").unwrap();
    (row.rank, row.seq, row.channel, row.peer) = (op.row.rank, op.row.seq, op.row.channel, 2);
    row.t_slot_free_ns = Observed::Known(begin);
    (row.t_start_ns, row.t_end_ns) = (Observed::Unknown, Observed::Known(end));
    row.bytes_measured = Observed::Known(bytes);
    row.set_waits(&WaitTimes::new([Some(5), None, None, Some(end - begin - 5), None, None, None]));
    row
}

#[test]
fn an_op_is_put_together_from_its_channels_in_whatever_order_they_come() {
    let (mut open, mut closed) = (OpenOps::default(), Vec::new());
    let mut links = Links::default();
    for (seq, channel) in [(2, 0), (4, 0), (2, 1), (4, 1)] {
        let op = op(1, seq, channel);
        let at = seq * MS + u64::from(channel) * 1000;
        let row = message(&op, at, at + 10_000, 100);
        links.add(0, &row);
        let new = || OpTotals::new(0, &op, 1_000_000_000, None);
        let totals = open.get((0, 1), seq, &mut closed, new).unwrap();
        totals.add_channel(&op, 1_000_000_000, None);
        totals.add_message(&row, 1_000_000_000);
    }
    assert!(closed.is_empty());
    open.close(&mut closed);
    assert_eq!(closed.iter().map(|op| op.seq).collect::<Vec<_>>(), [2, 4]);
    for op in &closed {
        let begin = 1_000_000_000 + op.seq * MS;
        assert_eq!((op.channels, op.ts_ns, op.span_ns), (3, begin, Some((begin, begin + 11_000))));
        assert_eq!(op.waits_ns, [10, 0, 0, 19_990, 0, 0, 0, 0]);
        links.add_op(op);
    }
    let found = links.data(0);
    assert_eq!(found.len(), 1);
    let link = &found[0];
    assert_eq!((link.ended, link.bytes, link.moved, link.busy_ns), (4, 400, 400, 22_000));
    assert_eq!((&*link.channels, link.waits_ns[3], link.max_ns), (&[0, 1][..], 4 * 9_995, Some(10_000)));
}

/// 64 ranks and 10,000 collectives are more than a page shows: bars are put together, the same ones on all
/// ranks, and nothing is lost.
#[test]
fn a_long_timeline_is_summed_up_and_loses_nothing() {
    const RANKS: i32 = 64;
    const OPS: u64 = 10_000;
    let mut timeline = Timeline::default();
    for number in 0..OPS {
        for rank in 0..RANKS {
            let begin = number * 10 * MS + u64::from(rank.unsigned_abs()) * 1000;
            // Every hundredth op was planned only, and one is the longest of all.
            let length = if (number, rank) == (5001, 3) { 9 * MS } else { 4 * MS };
            let span = (number % 100 > 0).then_some((begin, begin + length));
            timeline.add(&totals(rank, number * 2, span), 0, None);
        }
    }
    let data = timeline.data(0, &[]);
    assert_eq!((data.lanes.len(), data.merge), (64, 16));
    let first: Vec<i64> = data.lanes[0].number.clone();
    for lane in &data.lanes {
        assert_eq!(lane.number, first, "the same collectives on all ranks");
        assert_eq!(lane.ops.iter().map(|ops| u64::from(*ops)).sum::<u64>(), OPS);
        assert_eq!(lane.measured.iter().map(|ops| u64::from(*ops)).sum::<u64>(), OPS - OPS / 100);
        // In microseconds: 3 ms and 1 ms of each op.
        assert_eq!(
            lane.waits.iter().map(|(wait, us)| (*wait, us.iter().sum())).collect::<Vec<_>>(),
            [(1, OPS * 3000), (4, OPS * 1000)]
        );
    }
    let slowest = timeline.longest(0, &[]);
    assert_eq!((slowest[0].rank, slowest[0].seq, slowest[0].us), (3, 10_002, 9000));
    let bytes = serde_json::to_vec(&data).unwrap().len();
    assert!(bytes < 2_500_000, "{bytes} of at most 5 MB");
}

/// Forged numbers that no neighbours share do not grow without a bound.
#[test]
fn a_timeline_of_scattered_numbers_is_bounded() {
    let mut timeline = Timeline::with_most(100);
    for number in 0..5000u64 {
        let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !1;
        timeline.add(&totals(0, scattered, None), 0, None);
    }
    let data = timeline.data(0, &[]);
    assert!(data.lanes[0].at.len() <= 5000);
    assert_eq!(data.lanes[0].ops.iter().map(|ops| u64::from(*ops)).sum::<u64>(), 5000);
}

#[test]
fn kinds_are_counted_by_their_sizes_and_rounded_when_there_are_too_many() {
    let mut kinds = Kinds::default();
    let mut want: BTreeMap<Option<u64>, u64> = BTreeMap::new();
    for seq in 0..30 {
        kinds.add(&totals(1, seq * 2, Some((0, (seq + 1) * 1000))));
        *want.entry(Some(4096 * (1 + seq * 2 % 3))).or_default() += 1;
    }
    let found = || kinds.data().into_iter().filter(|kind| kind.ops > 0);
    assert_eq!(found().map(|kind| (kind.key.bytes, kind.ops)).collect::<BTreeMap<_, _>>(), want);
    assert_eq!(found().map(|kind| kind.total_ns).sum::<u64>(), (1..=30).map(|ops| ops * 1000).sum::<u64>());
    assert!(!kinds.has_rounded());
    let mut kinds = Kinds::default();
    for bytes in 0..5000 {
        let mut op = totals(1, 0, None);
        op.kind.bytes = Some(bytes * 1024 + 1);
        kinds.add(&op);
    }
    let data = kinds.data();
    assert!(kinds.has_rounded() && data.len() < 1100, "{}", data.len());
    assert_eq!(data.iter().map(|kind| kind.ops).sum::<u64>(), 5000);
}

#[test]
fn equal_stacks_of_several_processes_are_one_line_of_the_users_code() {
    let frame = |file: &str, line, function: &str| FrameRow {
        function: function.to_owned(),
        file: Some(file.to_owned()),
        line: Some(line),
        module: None,
    };
    let mut code = Code::default();
    code.begin();
    let frames = vec![
        frame("/home/ann/train.py", 41, "step"),
        frame("/usr/lib/python3.12/site-packages/torch/distributed/c10d.py", 7, "all_reduce"),
    ];
    for pid in [10, 11] {
        let number = code.number(pid, StackId(3));
        let mut op = totals(0, 2, Some((0, 500)));
        op.code = number;
        code.add_op(&op);
        let stack = StackId(3);
        code.stack(&StackRow { stack, pid, frames: frames.clone(), cut: false, unknown: None, thread: None });
    }
    let (lines, numbers) = code.data();
    assert_eq!((lines.len(), &*numbers), (1, &[0, 0][..]));
    assert_eq!(lines[0].line, "/home/ann/train.py:41 in step");
    assert_eq!((lines[0].sums.ops, lines[0].sums.total_ns, lines[0].frames.len()), (2, 1000, 2));
    assert!(lines[0].frames[0].ends_with("c10d.py:7 in all_reduce"));
}
