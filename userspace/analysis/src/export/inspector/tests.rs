use super::*;
use crate::export::made::op;

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
