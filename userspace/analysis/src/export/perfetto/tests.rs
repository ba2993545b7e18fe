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
fn each_replay_is_an_event_and_a_further_channel_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let mut view = Perfetto::create(&folder.path().join("trace"), &[]).unwrap();
    view.look_at(&[]).unwrap();
    for op in [op(0, None), op(1, None), op(0, Some(1)), op(0, Some(2))] {
        assert_eq!(op_id(&op).is_some(), op.row.graph_launch.is_none(), "its number is the captured op's");
        view.row(Row::Op(&op)).unwrap();
    }
    view.finish_op().unwrap();
    assert_eq!((view.totals.instants, view.totals.further_channels), (3, 1));
}
