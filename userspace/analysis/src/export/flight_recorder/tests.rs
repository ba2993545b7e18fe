use flow::{
    made::ops::{Op as MadeOp, host},
    model::Rows,
};

use super::*;

/// An op on a channel; or its replay by this launch of its graph.
fn op(channel: u32, graph_launch: Option<u64>) -> Op {
    let made = MadeOp { seq: 4, channel, ..MadeOp::default() };
    let mut op = Rows::default().op(&made.record(), &host(10));
    (op.row.captured_seq, op.row.graph_launch) = (graph_launch.map(|_| 4), graph_launch);
    op
}

#[test]
fn replays_are_told_and_have_no_entry() {
    let folder = tempfile::tempdir().unwrap();
    let mut view = FlightRecorder::create(&folder.path().join("entries"), false).unwrap();
    // Were it the first of its number, it would be numbered like the op that was captured.
    view.take_op(&op(0, Some(1))).unwrap();
    view.take_op(&op(0, Some(2))).unwrap();
    assert!(view.comm_ranks.is_empty() && view.totals.entries == 0);
    assert!(view.totals.notes(0).any(|note| note.starts_with("2 ops are replays")));
}
