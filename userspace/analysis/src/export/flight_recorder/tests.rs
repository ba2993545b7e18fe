use super::*;
use crate::export::made::op;

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
