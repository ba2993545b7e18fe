//! Ops for the tests of formats.

use flow::{
    made::ops::{Op as MadeOp, host},
    model::Rows,
    schema::Op,
};

/// An op on a channel; or its replay by this launch of its graph.
pub(super) fn op(channel: u32, graph_launch: Option<u64>) -> Op {
    let made = MadeOp { seq: 4, channel, ..MadeOp::default() };
    let mut op = Rows::default().op(&made.record(), &host(10));
    (op.row.captured_seq, op.row.graph_launch) = (graph_launch.map(|_| 4), graph_launch);
    op
}
