use super::*;
use crate::export::made::op;

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
