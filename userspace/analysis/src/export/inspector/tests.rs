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
fn each_replay_has_a_record_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let dir = OutputDir::open(folder.path()).unwrap();
    let mut view = Inspector::new(dir, InspectorVersion::V4_3);
    for op in [op(0, None), op(1, None), op(0, Some(1)), op(0, Some(2))] {
        view.row(Row::Op(&op)).unwrap();
    }
    view.close_all().unwrap();
    assert_eq!(view.totals.collectives, 3);
}
