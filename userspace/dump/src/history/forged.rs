//! The history of rings that somebody has made up, for fuzzing.

use torch::{Found, Recorder};

use super::{HISTORY_SCHEMA, HistoryReport};
use torch_history::{ProcessHistory, compare, over, report_of};

/// Returns the history of two ranks that both have these rings.
pub fn history_of_forged_rings(rings: &[(Found, Recorder)]) -> HistoryReport {
    let process = |rank: u64| ProcessHistory {
        pid: u32::try_from(rank + 1).unwrap_or(1),
        rank: Some(rank),
        notes: Some(report_of(rings)),
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
