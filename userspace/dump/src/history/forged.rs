//! The history of rings that somebody has made up, for fuzzing.

use super::{HISTORY_SCHEMA, HistoryReport};
use torch_history::{NotesReport, ProcessHistory, RingReport, compare, over};

/// Returns the history of two ranks that both have these rings.
pub fn history_of_forged_rings(rings: &[RingReport]) -> HistoryReport {
    let process = |rank: u64| ProcessHistory {
        pid: u32::try_from(rank + 1).unwrap_or(1),
        rank: Some(rank),
        notes: Some(NotesReport { rings: rings.to_vec(), ..NotesReport::default() }),
        ..ProcessHistory::default()
    };
    let mut processes: Vec<ProcessHistory> = (0..2).map(process).collect();
    let groups = compare(&mut processes, &[]);
    HistoryReport {
        schema: HISTORY_SCHEMA,
        verdict: over(&groups),
        groups,
        processes,
        ..HistoryReport::default()
    }
}
